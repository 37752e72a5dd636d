{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* What all parts read: the chart's settings, and the values over them. */}}
{{- define "slicekeeper.settings" -}}
{{- $settings := mergeOverwrite (.Files.Get "files/config.yaml" | fromYaml) (deepCopy .Values.config) -}}
{{- $images := dict -}}
{{- range $key, $value := .Values.images -}}
{{- if $value }}{{ $_ := set $images $key $value }}{{ end -}}
{{- end -}}
{{- if $images }}{{ $_ := set $settings "images" $images }}{{ end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* What holds for each namespace. */}}
{{- define "slicekeeper.policy" -}}
{{- $policy := mergeOverwrite (.Files.Get "files/policy.yaml" | fromYaml) (deepCopy .Values.policy) -}}
{{- $_ := set $policy.default "mode" .Values.mode -}}
{{- toYaml $policy -}}
{{- end -}}

{{/* The image of one part: (list PART .). */}}
{{- define "slicekeeper.image" -}}
{{- $images := (last .).Values.images -}}
{{- $digest := get $images.digests (first .) -}}
{{- $images.registry | default "slicekeeper.invalid" }}/{{ first . -}}
{{- if $digest }}@{{ $digest }}{{ else }}:{{ $images.tag | default (last .).Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* kube-scheduler, of the API server's version: what clouds and distributions add to it is no tag. */}}
{{- define "slicekeeper.kubeScheduler" -}}
{{- $server := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{- .Values.kubeScheduler.image }}:{{ .Values.kubeScheduler.version | default $server -}}
{{- end -}}

{{/* kube-scheduler's configuration for one shard, or for the first scheduler, whose shard is empty: (list SHARD .). */}}
{{- define "slicekeeper.kubeSchedulerConfig" -}}
{{- $shard := first . -}}
{{- $settings := include "slicekeeper.settings" (last .) | fromYaml -}}
{{- $suffix := ternary (printf "-%s" $shard) "" (ne $shard "") -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceNamespace: slicekeeper-system
  resourceName: slicekeeper-scheduler{{ $suffix }}
# kube-scheduler asks an extender only about the nodes that it sampled: sample all of them.
percentageOfNodesToScore: 100
profiles:
  - schedulerName: {{ printf "%s%s" $settings.webhook.schedulerName $suffix | quote }}
{{- with $settings.scheduler.shards }}
    # It asks only about the nodes of its shard.
    pluginConfig:
      - name: NodeAffinity
        args:
          addedAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms:
                - matchExpressions:
                    - key: slicekeeper.io/shard
                      operator: {{ ternary "In" "NotIn" (ne $shard "") }}
                      values: {{ toJson (ternary (list $shard) . (ne $shard "")) }}
{{- end }}
extenders:
  - urlPrefix: http://127.0.0.1:8445
    # Filters, and leaves only the best of the nodes that fit: kube-scheduler then has nothing to score.
    filterVerb: place
    preemptVerb: preempt
    bindVerb: bind
    nodeCacheCapable: true
    # A bind may wait for the API server twice.
    httpTimeout: 30s
    # Only pods that request these. They stay visible to kube-scheduler, or its preemption would stop working.
    managedResources:
      - {name: {{ $settings.resources.core | quote }}, ignoredByScheduler: false}
      - {name: {{ $settings.resources.memory | quote }}, ignoredByScheduler: false}
{{- end -}}

{{/* Namespaces for which no webhook is called, in JSON. A selector has no patterns: for namespaces that a pattern
exempts, the webhook is called, and admits the pod. */}}
{{- define "slicekeeper.leftAlone" -}}
{{- $names := list -}}
{{- range (include "slicekeeper.settings" . | fromYaml).policy.exemptNamespaces -}}
{{- if not (regexMatch "[*?\\[]" .) }}{{ $names = append $names . }}{{ end -}}
{{- end -}}
{{- append $names "slicekeeper-system" | uniq | toJson -}}
{{- end -}}

{{/* A list as CEL writes it. */}}
{{- define "slicekeeper.celList" -}}
['{{ join "', '" . }}']
{{- end -}}

{{/* The resources, annotations and labels of other GPU sharing systems whose pods are sent to the webhook. */}}
{{- define "slicekeeper.foreign" -}}
{{- $dialects := .Files.Get "files/foreign-dialects.yaml" | fromYaml -}}
{{- $found := dict "resources" list "annotations" list "labels" list -}}
{{- range $name := (include "slicekeeper.settings" . | fromYaml).resources.foreign -}}
{{- range $kind, $names := $found }}{{ $_ := set $found $kind (concat $names (dig $name $kind list $dialects)) }}{{ end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* CEL: containers of the pod spec SPEC request a GPU: (list SPEC .). */}}
{{- define "slicekeeper.requestsGpus" -}}
{{- $resources := (include "slicekeeper.settings" (last .) | fromYaml).resources -}}
{{- $own := concat (list $resources.core $resources.memory $resources.seat) (kindIs "string" $resources.device | ternary (list $resources.device) $resources.device) -}}
{{- $names := list -}}
{{- $prefixes := list -}}
{{- range $name := concat $own (include "slicekeeper.foreign" (last .) | fromYaml).resources -}}
{{- $covered := false -}}
{{- range $prefixes }}{{ $covered = or $covered (hasPrefix . $name) }}{{ end -}}
{{- if hasSuffix "*" $name }}{{ $prefixes = append $prefixes (trimSuffix "*" $name) -}}
{{- else if not $covered }}{{ $names = append $names $name }}{{ end -}}
{{- end -}}
{{- $asks := printf "exists(resource, resource in %s" (include "slicekeeper.celList" (uniq $names)) -}}
{{- if $prefixes -}}
{{- $asks = printf "%s || %s.exists(prefix, resource.startsWith(prefix))" $asks (include "slicekeeper.celList" $prefixes) -}}
{{- end -}}
({{ first . }}.containers + {{ first . }}.?initContainers.orValue([])).exists(c,
c.?resources.?limits.orValue({}).{{ $asks }}) ||
c.?resources.?requests.orValue({}).{{ $asks }}))
{{- end -}}

{{/* CEL: the pod requests GPUs, or has a name of ours. */}}
{{- define "slicekeeper.isGpuPod" -}}
{{- $foreign := include "slicekeeper.foreign" . | fromYaml -}}
{{- $labels := concat (list "slicekeeper.io/managed") $foreign.labels | include "slicekeeper.celList" -}}
{{- $annotations := concat (list "slicekeeper.io/bound-at" "slicekeeper.io/sharing-mode" "slicekeeper.io/budget-state") $foreign.annotations | include "slicekeeper.celList" -}}
{{ include "slicekeeper.requestsGpus" (list "object.spec" .) }} ||
object.metadata.?labels.orValue({}).exists(k, k in {{ $labels }}) ||
object.metadata.?finalizers.orValue([]).exists(f, f == 'slicekeeper.io/charge') ||
object.metadata.?annotations.orValue({}).exists(k, k.startsWith('gpu.slicekeeper.io/') ||
k in {{ $annotations }})
{{- end -}}

{{/* CEL: as above, for a pod that is created, which may have our gate too. */}}
{{- define "slicekeeper.createsGpuPod" -}}
{{ include "slicekeeper.isGpuPod" . }} ||
object.spec.?schedulingGates.orValue([]).exists(g, g.name == 'slicekeeper.io/reservation')
{{- end -}}

{{/* Refuses what would not work, with what to do instead. */}}
{{- define "slicekeeper.check" -}}
{{- if ne .Release.Namespace "slicekeeper-system" -}}
{{- fail (printf "the namespace is %s, and guards and certificates know the parts by slicekeeper-system: add `--namespace slicekeeper-system --create-namespace`" .Release.Namespace) -}}
{{- end -}}
{{- $config := .Values.config -}}
{{- if hasKey $config "images" }}{{ fail "config.images is set: the chart's own value `images` says where images come from" }}{{ end -}}
{{- $resources := (include "slicekeeper.settings" . | fromYaml).resources -}}
{{- $devices := kindIs "string" $resources.device | ternary (list $resources.device) $resources.device -}}
{{- $known := $devices -}}
{{- range $name := list $resources.core $resources.memory $resources.seat -}}
{{- range $known -}}
{{- if or (eq . $name) (and (hasSuffix "*" .) (hasPrefix (trimSuffix "*" .) $name)) }}{{ fail (printf "config.resources names %s twice: core, memory, seat and device must be different resources" $name) }}{{ end -}}
{{- end -}}
{{- $known = append $known $name -}}
{{- end -}}
{{- if hasKey (.Values.policy.default | default dict) "mode" -}}
{{- fail "policy.default.mode is set: the chart's own value `mode` says it" -}}
{{- end -}}
{{- $policy := include "slicekeeper.policy" . | fromYaml -}}
{{- $matches := dict -}}
{{- range $entry := $policy.namespaces -}}
{{- range $match := kindIs "string" $entry.match | ternary (list $entry.match) $entry.match -}}
{{- if hasKey $matches $match }}{{ fail (printf "policy.namespaces has two entries for %s: keep one of them" $match) }}{{ end -}}
{{- $_ := set $matches $match true -}}
{{- end -}}
{{- end -}}
{{- range $entry := prepend ($policy.namespaces | default list) $policy.default -}}
{{- /* dateInZone takes an unknown zone for UTC, whose own zones are all below Etc or have one of these names; a machine
without time zones knows none. */ -}}
{{- $zone := dig "budget" "timeZone" "UTC" $entry -}}
{{- $known := eq (dateInZone "MST" now "Asia/Tokyo") "JST" -}}
{{- if and $known (eq (dateInZone "MST" now $zone) "UTC") (not (regexMatch "^(Etc/.+|UTC|UCT|Universal|Zulu)$" $zone)) -}}
{{- fail (printf "policy: budget.timeZone is %s, which is no IANA time zone; for example Europe/Berlin" $zone) -}}
{{- end -}}
{{- if and (eq (dig "budget" "enforcement" "" $entry) "hard") (not $.Values.components.hardBudgets) -}}
{{- fail "policy has `enforcement: hard`, for which the timekeeper evicts pods: set components.hardBudgets=true, which gives it the right" -}}
{{- end -}}
{{- if and (eq (get $entry "audit" | default "") "evict") (not $.Values.components.auditEvictions) -}}
{{- fail "policy has `audit: evict`, for which node agents evict pods: set components.auditEvictions=true, which gives them the right" -}}
{{- end -}}
{{- end -}}
{{- $replicas := int .Values.timekeeper.replicas -}}
{{- if and (gt $replicas 1) (not .Values.components.postgresql) -}}
{{- fail (printf "timekeeper.replicas is %d, and the ledger is on SQLite, whose file one pod alone may have: set components.postgresql=true, and make the Secret with the database's URL (databaseSecret)" $replicas) -}}
{{- end -}}
{{- if and (eq (dig "timekeeper" "weight" "" $config) "quota") (not .Values.components.quotaWeight) -}}
{{- fail "config.timekeeper.weight is quota, for which the timekeeper reads ResourceQuotas: set components.quotaWeight=true, which gives it the right" -}}
{{- end -}}
{{- end -}}
