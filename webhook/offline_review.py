# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper review`: show manifests as they would be admitted, by the same code and without a server.

A workload is shown with its template as the pods created from it: the API server does not change the template, but the
webhook changes each pod, and users want to see that.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, Final

import yaml

from slicekeeper import names
from slicekeeper.config import policy_objects
from slicekeeper.config.policy import PolicyBook
from slicekeeper.config.settings import Settings
from slicekeeper.errors import SettingsError
from slicekeeper.untyped_json import as_map
from webhook import reserved_names
from webhook.admission import Admission
from webhook.budget_standing import Standing
from webhook.json_patch import apply
from webhook.limit_range_watch import LimitRanges
from webhook.manifest import Manifest
from webhook.pod_templates import template_path
from webhook.refusal_status import status_of
from webhook.review_inputs import Case
from webhook.template_search import FoundTemplate, group_of, may_have_pods, search, with_template, written
from webhook.verdict import Verdict

Document = dict[str, Any]

_PARAMETER: Final = "{{"
"""In a value: an operator replaces it before it creates pods, as Argo's do."""


@dataclass(frozen=True)
class ReviewOutcome:
    """The result for one object: its name, its manifest, and the verdict with the admitted object."""

    name: str
    before: Document
    verdict: Verdict
    admitted: Document


class _ManifestDumper(yaml.SafeDumper):
    """Writes a value each time it occurs: an anchor would confuse readers."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class's signature
        """Say that nothing is written as an alias."""
        return True


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a date is a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class NoObjects(SettingsError):
    """No document of a file is a Kubernetes object, or meant to be one."""


def read(file: IO[bytes] | str, name: str) -> list[Document]:
    """Return the documents of a YAML or JSON file; `name` is for messages.

    Raises SettingsError if it contains anything but Kubernetes objects, NoObjects if it contains none at all.
    """
    try:
        documents = [document for document in yaml.load_all(file, _Loader) if document is not None]
        # JSON is what the API server gets: keys are strings, and an alias is a copy.
        plain: list[Document] = json.loads(json.dumps(documents))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, TypeError, RecursionError) as error:
        raise SettingsError(f"{name}: not YAML or JSON: {error}") from error
    meant = any(isinstance(document, dict) and {"kind", "apiVersion"} & document.keys() for document in plain)
    for document in plain:
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            refusal = SettingsError if meant else NoObjects
            raise refusal(f"{name}: {str(document)[:40]!r} is not an object; begin it with apiVersion: and kind:")
    return plain


def with_policies(book: PolicyBook, documents: list[Document]) -> PolicyBook:
    """Return a book with the GpuPolicies among some documents applied over it, as in a cluster.

    Raises SettingsError if one of them is not valid.
    """
    found = []
    for document in _objects(documents):
        if document["kind"] == "GpuPolicy" and str(document.get("apiVersion")).startswith(f"{names.GROUP}/"):
            metadata = as_map(document.get("metadata"))
            name = str(metadata.get("name") or "")
            found.append(policy_objects.read({**document, "metadata": {"uid": name, **metadata, "name": name}}))
    applied = policy_objects.apply_policies(book, found)
    for one in found:
        if error := applied.errors.get(one.uid):
            raise SettingsError(f"GpuPolicy {one.name}: {error}")
    return applied.book


def review(
    documents: list[Document], namespace: str, settings: Settings, book: PolicyBook, *, over_budget: bool
) -> list[ReviewOutcome]:
    """Review all objects as new ones, those in Lists one by one; `namespace` is for objects that name none.

    Raises SettingsError if a GpuPolicy among them is not valid.
    """
    book = with_policies(book, documents)
    limit_ranges = LimitRanges()
    for document in _objects(documents):
        if document["kind"] == "LimitRange":
            placed = {"namespace": namespace, **as_map(document.get("metadata"))}
            limit_ranges.on_event("ADDED", {**document, "metadata": placed})
    admission = Admission(settings, limit_ranges=limit_ranges)
    outcomes = []
    for document in _objects(documents):
        metadata = as_map(document.get("metadata"))
        own = metadata.get("namespace")
        place = own if isinstance(own, str) and own else namespace
        name = metadata.get("name") or metadata.get("generateName") or ""
        policy = book.of(place)
        standing = Standing(over_budget=over_budget, hard=policy.evicts)
        case = Case(place, policy, standing)
        if book.is_exempt(place):  # the server does not even call the webhook
            verdict, admitted = Verdict(), document
        else:
            verdict, admitted = _admit(admission, document, case)
        outcomes.append(ReviewOutcome(f"{document['kind']} {place}/{name}", document, verdict, admitted))
    return outcomes


def _objects(documents: list[Document]) -> Iterator[Document]:
    for document in documents:
        if document["kind"].endswith("List") and isinstance(document.get("items"), list):
            yield from _objects([item for item in document["items"] if isinstance(as_map(item).get("kind"), str)])
        else:
            yield document


def _admit(admission: Admission, document: Document, case: Case) -> tuple[Verdict, Document]:
    if document["kind"] == "Pod" and not group_of(document):
        if admission.forges_mirror(document, case):
            return Verdict(violations=[reserved_names.not_by_kubelet(Manifest(document).metadata)]), document
        verdict = admission.mutate(document, case)
        return verdict, apply(document, verdict.patch)
    found = search(document)
    if not found and may_have_pods(document):
        kind = f"{document['kind']} of {group_of(document)}"
        return Verdict(warnings=[f"not looked at: no pod template was found in this {kind}"]), document
    known = template_path(group_of(document), document["kind"]) is not None
    verdicts, admitted = [], document
    for one in found:
        verdict, template = _admit_template(admission, document if known else {}, one, case)
        verdicts.append(verdict)
        if not one.called and template is not None:
            admitted = with_template(admitted, one.path, template)
    return _joined(verdicts), admitted


def _admit_template(
    admission: Admission, workload: Document, found: FoundTemplate, case: Case
) -> tuple[Verdict, Mapping[str, Any] | None]:
    """Return the verdict on a template, and the template as its pods would be; None if they would be refused."""
    verdict = admission.validate_template(workload, found.template, case, written(found.path))
    if not verdict.allowed:
        named = [replace(each, field=found.field(each.field)) for each in verdict.violations]
        refused = [each for each in named if _PARAMETER not in each.value]
        later = [f"not looked at: {each.field} is {each.value}, which is filled in later" for each in named]
        return Verdict(violations=refused) if refused else Verdict(warnings=later), None
    pod = admission.mutate(found.template, case)
    if not pod.allowed:  # refused only by the budget: the template passes with a warning
        return verdict, None
    return pod, apply(found.template, pod.patch)


def _joined(verdicts: Sequence[Verdict]) -> Verdict:
    if len(verdicts) == 1:
        return verdicts[0]
    return Verdict(
        warnings=list(dict.fromkeys(warning for verdict in verdicts for warning in verdict.warnings)),
        violations=[violation for verdict in verdicts for violation in verdict.violations],
    )


def as_yaml(outcomes: list[ReviewOutcome]) -> str:
    """Return the objects admitted as a stream of YAML documents."""
    return "---\n".join(_yaml(outcome.admitted) for outcome in outcomes if outcome.verdict.allowed)


def as_json(outcomes: list[ReviewOutcome]) -> str:
    """Return the object, or a List of several; in a refused one's place the Status that the API server answers."""
    items = [o.admitted if o.verdict.allowed else _status(o) for o in outcomes]
    shown = items[0] if len(items) == 1 else {"apiVersion": "v1", "kind": "List", "items": items}
    return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


def as_diff(outcomes: list[ReviewOutcome]) -> str:
    """Return what the webhook would change, as a unified diff of the YAML."""
    lines: list[str] = []
    for outcome in outcomes:
        if outcome.verdict.allowed:
            before, after = (_yaml(d).splitlines(keepends=True) for d in (outcome.before, outcome.admitted))
            lines += difflib.unified_diff(before, after, outcome.name, f"{outcome.name} (admitted)")
    return "".join(lines)


def _yaml(document: Document) -> str:
    return yaml.dump(document, Dumper=_ManifestDumper, sort_keys=False, allow_unicode=True, width=1000)


def _status(outcome: ReviewOutcome) -> Document:
    head = {"apiVersion": "v1", "kind": "Status", "status": "Failure"}
    return {**head, **status_of(outcome.verdict.violations)}
