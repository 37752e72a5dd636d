{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* What a GpuBudget and a ClusterGpuBudget have in common. */}}

{{- define "slicekeeper.budgetColumns" -}}
- {name: State, type: string, jsonPath: .status.state}
- {name: Amount, type: string, jsonPath: .status.amount}
- {name: To-Spend, type: string, jsonPath: .status.toSpend}
- {name: Used, type: string, jsonPath: .status.used}
- {name: Left, type: string, jsonPath: .status.left}
- {name: Run-Out, type: string, jsonPath: .status.runOut, description: When it will be used up (UTC).}
- {name: Ready, type: string, priority: 1, jsonPath: '.status.conditions[?(@.type=="Ready")].reason'}
- {name: Bound-By, type: string, priority: 1, jsonPath: .status.boundBy}
{{- end -}}

{{- define "slicekeeper.budgetFields" -}}
amount:
  description: GPU time per period, for example 20h or 1h30m.
  type: string
  minLength: 2
  maxLength: 16
  pattern: '^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$'
period:
  description: "How often the amount is granted again; none: once."
  type: string
  enum: [none, hour, day, week, month, year]
timeZone:
  description: IANA name of the zone in which periods begin; UTC if omitted.
  type: string
  minLength: 1
  maxLength: 64
anchor:
  description: An instant (RFC 3339) at which a period begins; if omitted, as in the calendar.
  type: string
  format: date-time
  maxLength: 40
credit:
  description: How far the balance may go below zero, for example 2h.
  type: string
  minLength: 2
  maxLength: 16
  pattern: '^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$'
rollover:
  description: How much unused time at most carries over to the next period, for example 5h.
  type: string
  minLength: 2
  maxLength: 16
  pattern: '^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$'
parent:
  description: "The team or organisation above it; '' for none; if omitted, the parent set by other means is kept."
  type: string
  maxLength: 63
  pattern: '^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$'
{{- end -}}

{{- define "slicekeeper.budgetStatus" -}}
status:
  description: The state of the budget, according to the timekeeper.
  type: object
  properties:
    state:
      description: ok, warning, overdraft, exhausted, suspended or closed.
      type: string
    amount: {type: string}
    toSpend:
      description: Amount, rollover and grants, less what was withdrawn; it is used plus left.
      type: string
    used: {description: GPU time charged in this period., type: string}
    left: {type: string}
    runOut: {description: runOutAt in the form that the column shows., type: string}
    runOutAt: {description: When it will be used up if the running pods continue., type: string}
    boundBy:
      description: "The team or organisation above whose budget is the limit; none: its own is."
      type: string
    asOf: {description: When these figures were written., type: string}
    observedGeneration: {type: integer, format: int64}
    conditions:
      type: array
      x-kubernetes-list-type: map
      x-kubernetes-list-map-keys: [type]
      items:
        type: object
        required: [type, status, reason, message, lastTransitionTime]
        properties:
          type: {type: string}
          status: {type: string, enum: ["True", "False", Unknown]}
          reason: {type: string}
          message: {type: string}
          observedGeneration: {type: integer, format: int64}
          lastTransitionTime: {type: string, format: date-time}
{{- end -}}
