{{- /* What kustomize does, for the files that it does it to: each helper below changes the object that it is given, and says nothing. */ -}}

{{- define "verbatim.prefix" -}}
{{- if ne .Release.Name .Chart.Name }}{{ .Release.Name }}-{{ end -}}
{{- end -}}

{{- define "verbatim.image" -}}
{{- $name := .Values.image -}}
{{- if $name.digest }}{{ $name.repository }}@{{ $name.digest }}{{ else }}{{ $name.repository }}:{{ $name.tag | default .Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- /* The variables of every application, as YAML: those of settings.env, the release's name, and over them what values say. */ -}}
{{- define "verbatim.settings" -}}
{{- $found := dict -}}
{{- range splitList "\n" (.Files.Get "base/config/settings.env") -}}
  {{- if and . (not (hasPrefix "#" .)) -}}
    {{- $pair := splitn "=" 2 . -}}
    {{- $_ := set $found $pair._0 $pair._1 -}}
  {{- end -}}
{{- end -}}
{{- $_ := set $found "APPLICATION_NAME" .Release.Name -}}
{{- if .Values.executors.enabled }}{{ $_ := set $found "SPARK_MASTER" "k8s://https://kubernetes.default.svc" }}{{ end -}}
{{- if .Values.schemas.enabled }}{{ $_ := set $found "PIPELINE" "/etc/verbatim/pipeline.yaml" }}{{ end -}}
{{- if regexMatch "^s3[an]?:" (.Values.settings.STATE_PATH | default "") }}{{ $_ := set $found "STATE_SHARING" "one-driver" }}{{ end -}}
{{- range $name, $value := .Values.settings -}}
  {{- /* Helm reads every number as a float: 4000000 would be 4e+06. */ -}}
  {{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ $value = int64 $value }}{{ end -}}
  {{- $_ := set $found $name (toString $value) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{- /* (root, settings) -> what the state is: "url", "shared" (a volume of every node's) or "node". */ -}}
{{- define "verbatim.state" -}}
{{- if regexMatch "^[A-Za-z][A-Za-z0-9+.-]+:" (.settings.STATE_PATH | replace "file:" "") }}url
{{- else if eq .root.Values.state.accessMode "ReadWriteMany" }}shared
{{- else }}node{{ end -}}
{{- end -}}

{{- /* (root, object): namespace, labels, and the prefix of its name and of those that it refers to. */ -}}
{{- define "verbatim.adopted" -}}
{{- $prefix := include "verbatim.prefix" .root -}}
{{- $metadata := .object.metadata -}}
{{- $_ := set $metadata "labels" (merge (dict "app.kubernetes.io/part-of" "verbatim" "app.kubernetes.io/instance" .root.Release.Name) ($metadata.labels | default dict)) -}}
{{- if eq .object.kind "Namespace" -}}
  {{- $_ := set $metadata "name" .root.Release.Namespace -}}
{{- else -}}
  {{- $_ := set $metadata "name" (print $prefix $metadata.name) -}}
  {{- $_ := set $metadata "namespace" .root.Release.Namespace -}}
{{- end -}}
{{- include "verbatim.references" (dict "root" .root "prefix" $prefix "found" (omit .object "metadata")) -}}
{{- if eq .object.kind "Deployment" -}}
  {{- $_ := set .object.spec.template.metadata.labels "app.kubernetes.io/instance" .root.Release.Name -}}
{{- end -}}
{{- end -}}

{{- /* (root, prefix, found): the same of what stands in an object, however deep. */ -}}
{{- define "verbatim.references" -}}
{{- $given := . -}}
{{- if kindIs "slice" .found -}}
  {{- range .found }}{{ include "verbatim.references" (dict "root" $given.root "prefix" $given.prefix "found" .) }}{{ end -}}
{{- else if kindIs "map" .found -}}
  {{- range $key, $value := .found -}}
    {{- if has $key (list "secretName" "claimName" "serviceAccountName") -}}
      {{- $_ := set $given.found $key (print $given.prefix $value) -}}
    {{- else if has $key (list "configMapRef" "configMap" "targetRef" "roleRef") -}}
      {{- $_ := set $value "name" (print $given.prefix $value.name) -}}
    {{- else if eq $key "subjects" -}}
      {{- range $value }}{{ $_ := set . "name" (print $given.prefix .name) }}{{ $_ := set . "namespace" $given.root.Release.Namespace }}{{ end -}}
    {{- else if has $key (list "selector" "labelSelector") -}}
      {{- $_ := set $value.matchLabels "app.kubernetes.io/instance" $given.root.Release.Name -}}
    {{- else -}}
      {{- include "verbatim.references" (dict "root" $given.root "prefix" $given.prefix "found" $value) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- /* (object, patch): a JSON patch of operations that add or replace. */ -}}
{{- define "verbatim.patched" -}}
{{- $object := .object -}}
{{- range .patch -}}
  {{- $steps := splitList "/" (.path | trimPrefix "/" | trimSuffix "/-") -}}
  {{- $at := $object -}}
  {{- range initial $steps }}{{ if kindIs "slice" $at }}{{ $at = index $at (int .) }}{{ else }}{{ $at = get $at . }}{{ end }}{{ end -}}
  {{- $value := .value -}}
  {{- if hasSuffix "/-" .path }}{{ $value = append (get $at (last $steps)) .value }}{{ end -}}
  {{- $_ := set $at (last $steps) $value -}}
{{- end -}}
{{- end -}}

{{- /* (into, from): merges one mapping into another; null takes away. (`merge` knows neither null nor false.) */ -}}
{{- define "verbatim.merged" -}}
{{- $into := .into -}}
{{- range $key, $value := .from -}}
  {{- if kindIs "invalid" $value }}{{ $_ := unset $into $key -}}
  {{- else if and (kindIs "map" $value) (kindIs "map" (get $into $key)) -}}
    {{- include "verbatim.merged" (dict "into" (get $into $key) "from" $value) -}}
  {{- else }}{{ $_ := set $into $key $value }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* (root, settings, state, object): an application's Deployment, with what values say of it. */ -}}
{{- define "verbatim.deployment" -}}
{{- $values := .root.Values -}}
{{- $name := .object.metadata.name -}}
{{- $given := get $values $name | default dict -}}
{{- if and $values.executors.enabled (has $name (list "replicator" "deduplicator")) -}}
  {{- include "verbatim.patched" (dict "object" .object "patch" (.root.Files.Get "overlays/executors/driver.yaml" | fromYamlArray)) -}}
{{- end -}}
{{- include "verbatim.adopted" . -}}
{{- $spec := .object.spec -}}
{{- $template := $spec.template -}}
{{- $pod := $template.spec -}}
{{- $container := first $pod.containers -}}
{{- $secret := $given.existingSecret | default $values.clients.existingSecret | default (print (include "verbatim.prefix" .root) "verbatim-clients") -}}
{{- /* What base/state.yaml and overlays/executors/no-volume.yaml say of where the state is. */ -}}
{{- if eq $name "deduplicator" -}}
  {{- if ne .state "node" }}{{ $_ := unset $pod "affinity" }}{{ end -}}
  {{- if eq (get .settings "STATE_SHARING" | default "") "one-driver" -}}
    {{- $_ := set $spec "replicas" 1 }}{{ $_ := set $spec "strategy" (dict "type" "Recreate") -}}
  {{- end -}}
  {{- if eq .state "url" -}}
    {{- $kept := list }}{{ range $pod.volumes }}{{ if ne .name "state" }}{{ $kept = append $kept . }}{{ end }}{{ end -}}
    {{- $_ := set $pod "volumes" $kept -}}
    {{- $kept = list }}{{ range $container.volumeMounts }}{{ if ne .name "state" }}{{ $kept = append $kept . }}{{ end }}{{ end -}}
    {{- $_ := set $container "volumeMounts" $kept -}}
  {{- end -}}
{{- end -}}
{{- range $pod.volumes -}}
  {{- if .secret }}{{ $_ := set .secret "secretName" $secret }}{{ end -}}
  {{- if and .persistentVolumeClaim $values.state.existingClaim }}{{ $_ := set .persistentVolumeClaim "claimName" $values.state.existingClaim }}{{ end -}}
{{- end -}}
{{- $_ := set $container "image" (include "verbatim.image" .root) -}}
{{- range $container.env -}}
  {{- if eq .name "IMAGE" }}{{ $_ := set . "value" $container.image }}{{ end -}}
  {{- if eq .name "CLIENTS_SECRET" }}{{ $_ := set . "value" $secret }}{{ end -}}
{{- end -}}
{{- with $values.image.pullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end -}}
{{- range $values.image.pullSecrets }}{{ $_ := set $pod "imagePullSecrets" (append ($pod.imagePullSecrets | default list) (dict "name" .)) }}{{ end -}}
{{- with concat ($container.env | default list) $values.env ($given.env | default list) }}{{ $_ := set $container "env" . }}{{ end -}}
{{- $_ := set $container "args" (concat $container.args ($given.args | default list)) -}}
{{- include "verbatim.merged" (dict "into" $container.resources "from" ($given.resources | default dict)) -}}
{{- with $given.replicas }}{{ $_ := set $spec "replicas" . }}{{ end -}}
{{- include "verbatim.merged" (dict "into" $pod "from" ($given.pod | default dict)) -}}
{{- $_ := set $template.metadata "labels" (merge $template.metadata.labels ($given.podLabels | default dict)) -}}
{{- /* A change of either rolls the Pods; kustomize has the ConfigMap's and the Secret's names change instead. */ -}}
{{- $content := dict "checksum/verbatim" (print (.settings | toYaml) ($values.clients.files | toYaml) ($values.executors.conf | toYaml) (.root.Files.Glob "{base/config,overlays/executors,overlays/schemas}/{*.properties,*.conf,pipeline.yaml}").AsConfig | sha256sum) -}}
{{- $_ := set $template.metadata "annotations" (merge $template.metadata.annotations $content ($given.podAnnotations | default dict)) -}}
{{- end -}}
