# SPDX-License-Identifier: Apache-2.0
"""What the ledger refuses, and why: stable codes, and the field of a request that is wrong.

LedgerError                  a request that the ledger refuses; the message says what to do instead
├── InvalidValue             a value in it is not valid
├── Unknown                  it names something that the ledger does not have
├── Conflicting              it does not fit what the ledger has
└── VersionMismatch          it was made for another version of a budget

A code never changes its meaning; a message may be improved any time. What other processes answer is a
`slicekeeper.errors.ServiceError`, and never one of these.
"""

from __future__ import annotations

from typing import ClassVar

from slicekeeper.errors import SlicekeeperError


class LedgerError(SlicekeeperError):
    """Base of all refusals. `field` names the part of a request that is wrong, empty if none is."""

    code: ClassVar[str] = "error"
    usual_field: ClassVar[str] = ""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = self.usual_field if field is None else field


class InvalidValue(LedgerError):
    """A value in a request is not valid."""


class InstantPast(InvalidValue):
    """An instant would have to be in the future."""

    code = "instant-past"


class InstantOrder(InvalidValue):
    """Something would end before it begins."""

    code, usual_field = "instant-order", "validTo"


class Unknown(LedgerError):
    """A request names something that the ledger does not have."""


class NamespaceUnknown(Unknown):
    """A namespace that has no account, or that the cluster does not have."""

    code, usual_field = "namespace-unknown", "namespace"


class ParentUnknown(Unknown):
    """A team or an organisation that does not exist."""

    code, usual_field = "parent-unknown", "parent"


class GrantUnknown(Unknown):
    """A grant that a budget does not have."""

    code, usual_field = "grant-unknown", "grant"


class PodUnknown(Unknown):
    """A pod that held no GPUs in a namespace."""

    code, usual_field = "pod-unknown", "podUid"


class ReservationUnknown(Unknown):
    """A reservation that a namespace does not have."""

    code, usual_field = "reservation-unknown", "reservation"


class Conflicting(LedgerError):
    """A request does not fit what the ledger has."""


class HierarchyCycle(Conflicting):
    """A budget would be above itself."""

    code, usual_field = "hierarchy-cycle", "parent"


class HierarchyTooDeep(Conflicting):
    """A chain of budgets would be too long."""

    code, usual_field = "hierarchy-too-deep", "parent"


class ParentRefused(Conflicting):
    """A budget of that kind cannot be in that place."""

    code, usual_field = "parent-refused", "parent"


class GrantBegun(Conflicting):
    """A grant can no longer be withdrawn."""

    code, usual_field = "grant-begun", "grant"


class EnforcementNotSafe(Conflicting):
    """GPU time cannot be set aside, because pods of the namespace take what there is."""

    code, usual_field = "enforcement-not-safe", ""


class KeyReused(Conflicting):
    """An idempotency key was already used for another request."""

    code, usual_field = "idempotency-key-reused", "Idempotency-Key"


class AmountOverflow(Conflicting):
    """Sums would grow beyond what the ledger can hold."""

    code, usual_field = "amount-overflow", "amountMs"


class BalanceInsufficient(Conflicting):
    """A budget has less left than the request needs."""

    code, usual_field = "balance-insufficient", "amountMs"


class NamespaceOff(Conflicting):
    """No budget applies to a namespace: it is exempt, or its policy's mode is `off`."""

    code, usual_field = "namespace-off", "namespace"


class BudgetClosed(Conflicting):
    """A budget is closed, or may not be spent."""

    code = "budget-closed"


class BudgetKept(Conflicting):
    """An object of the cluster keeps the budget: change the object instead."""

    code = "budget-kept-by-object"


class ObjectOutdated(Conflicting):
    """A newer state of the object that keeps a budget was accepted, or a newer object keeps it."""

    code = "object-outdated"


class IntervalImplausible(Conflicting):
    """A pod cannot have had that interval."""

    code = "interval-implausible"


class PeriodNotOver(Conflicting):
    """No completed period ends at that instant."""

    code, usual_field = "period-not-over", "until"


class PodRunning(Conflicting):
    """A pod must have ended first."""

    code, usual_field = "pod-running", "podUid"


class RateExists(Conflicting):
    """A model has another rate from that instant on."""

    code, usual_field = "rate-exists", "effectiveAt"


class RefundAboveCharge(Conflicting):
    """More would be refunded than a pod was charged."""

    code, usual_field = "refund-above-charge", "amountMs"


class ReservationOfPod(Conflicting):
    """A reservation ends with its pod and not before."""

    code, usual_field = "reservation-of-pod", "reservation"


class TransferRefused(Conflicting):
    """One of two budgets is above the other."""

    code, usual_field = "transfer-refused", "to"


class VersionMismatch(LedgerError):
    """A budget has another version than those that were named."""

    code, usual_field = "version-mismatch", "If-Match"
