{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* What all parts read: the manifests' settings, and the values over them. */}}
{{- define "slicekeeper.settings" -}}
{{- $own := .Files.Get "files/config.yaml" | fromYaml -}}
{{- $settings := mergeOverwrite (deepCopy $own) (deepCopy .Values.config) -}}
{{- $images := deepCopy ($own.images | default dict) -}}
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
{{- $part := first . -}}
{{- $images := (include "slicekeeper.settings" (last .) | fromYaml).images | default dict -}}
{{- $digest := get ($images.digests | default dict) $part -}}
{{- $images.registry | default "slicekeeper.invalid" }}/{{ $part -}}
{{- if $digest }}@{{ $digest }}{{ else }}:{{ $images.tag | default (last .).Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* kube-scheduler, of the API server's version: what clouds and distributions add to it is no tag. */}}
{{- define "slicekeeper.kubeScheduler" -}}
{{- $server := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{- .Values.kubeScheduler.image }}:{{ .Values.kubeScheduler.version | default $server -}}
{{- end -}}

{{/* kube-scheduler's configuration for one shard, or for the first scheduler: (list SHARD .). As slicekeeper/config/shards.py. */}}
{{- define "slicekeeper.kubeSchedulerConfig" -}}
{{- $shard := first . -}}
{{- $config := (last .).Files.Get "files/kube-scheduler.yaml" | fromYaml -}}
{{- $shards := (include "slicekeeper.settings" (last .) | fromYaml).scheduler.shards -}}
{{- $profile := first $config.profiles -}}
{{- $nodes := dict "key" "slicekeeper.io/shard" "operator" "NotIn" "values" $shards -}}
{{- if $shard -}}
{{- $_ := set $profile "schedulerName" (printf "%s-%s" $profile.schedulerName $shard) -}}
{{- $_ := set $config.leaderElection "resourceName" (printf "%s-%s" $config.leaderElection.resourceName $shard) -}}
{{- $nodes = dict "key" "slicekeeper.io/shard" "operator" "In" "values" (list $shard) -}}
{{- end -}}
{{- if $shards -}}
{{- $required := dict "nodeSelectorTerms" (list (dict "matchExpressions" (list $nodes))) -}}
{{- $args := dict "addedAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" $required) -}}
{{- $_ := set $profile "pluginConfig" (list (dict "name" "NodeAffinity" "args" $args)) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Refuses what would not work, with what to do instead. */}}
{{- define "slicekeeper.check" -}}
{{- if ne .Release.Namespace "slicekeeper-system" -}}
{{- fail (printf "the namespace is %s, and guards and certificates know the parts by slicekeeper-system: add `--namespace slicekeeper-system --create-namespace`" .Release.Namespace) -}}
{{- end -}}
{{- $config := .Values.config -}}
{{- range $path := list "images" "resources" "classes" "webhook.schedulerName" "policy.exemptNamespaces" "timekeeper.audience" -}}
{{- $keys := splitList "." $path -}}
{{- $under := $config -}}
{{- if gt (len $keys) 1 }}{{ $under = get $config (first $keys) | default dict }}{{ end -}}
{{- if hasKey $under (last $keys) -}}
{{- if eq $path "images" }}{{ fail "config.images is set: the chart's own value `images` says where images come from" }}{{ end -}}
{{- fail (printf "config.%s is set, and the API server and kube-scheduler read it from manifests: set it in manifests/base/config/config.yaml of a checkout, run `slicekeeper config manifests` and `slicekeeper config chart`, and install that chart" $path) -}}
{{- end -}}
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
