package storage

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"text/template"

	"github.com/kubeveil/kubeveil/e2e/vm"
)

// kind is a class of the run: like the shipped one of that name, with keys that are wrapped by a
// Secret.
type kind struct {
	class string
	block bool
}

var (
	ext4  = kind{class: "e2e-ext4"}
	xfs   = kind{class: "e2e-xfs"}
	block = kind{class: "e2e-block", block: true}
)

// setup is the Secret, the right of the side-cars to read it, and the classes.
var setup = template.Must(template.New("setup").Parse(`apiVersion: v1
kind: Secret
metadata: {name: e2e-kek, namespace: kube-system}
stringData: {key: "{{.Key}}"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: e2e-kek, namespace: kube-system}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [e2e-kek], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: e2e-kek, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: e2e-kek}
subjects: [{kind: ServiceAccount, name: veil-csi, namespace: kube-system}]
{{range .Classes}}---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: {{.Name}}}
provisioner: csi.kubeveil.io
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters:
  keys: secret
{{- if .FS}}
  csi.storage.k8s.io/fstype: {{.FS}}
{{- end}}
{{- range $what := $.Secrets}}
  csi.storage.k8s.io/{{$what}}-secret-name: e2e-kek
  csi.storage.k8s.io/{{$what}}-secret-namespace: kube-system
{{- end}}
{{end}}---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: e2e}
driver: csi.kubeveil.io
deletionPolicy: Delete
parameters:
  csi.storage.k8s.io/snapshotter-secret-name: e2e-kek
  csi.storage.k8s.io/snapshotter-secret-namespace: kube-system
`))

// setUp applies setup with a new key.
func (s *Session) setUp(ctx context.Context) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	type class struct{ Name, FS string }
	return s.apply(ctx, setup, map[string]any{
		"Key":     base64.StdEncoding.EncodeToString(key),
		"Classes": []class{{ext4.class, "ext4"}, {xfs.class, "xfs"}, {block.class, ""}},
		"Secrets": []string{"provisioner", "node-stage", "node-expand"},
	})
}

func (s *Session) apply(ctx context.Context, t *template.Template, data any) error {
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return err
	}
	return s.Cluster.Apply(ctx, b.Bytes())
}

// claim is a PersistentVolumeClaim with a pod of the same name that has it.
type claim struct {
	Name string
	kind
	// MiB is its size.
	MiB int
	// SourceKind and Source name the object that it is a copy of, if any.
	SourceKind, Source string
	// Node is where its volume is to be made; empty leaves it to the scheduler.
	Node string
}

var claimAndPod = template.Must(template.New("claim").Parse(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: {{.Name}}{{if .Node}}, annotations: {volume.kubernetes.io/selected-node: {{.Node}}}{{end}}}
spec:
  storageClassName: {{.Class}}
  accessModes: [{{if .Block}}ReadWriteOncePod{{else}}ReadWriteOnce{{end}}]
  volumeMode: {{if .Block}}Block{{else}}Filesystem{{end}}
  resources: {requests: {storage: {{.MiB}}Mi}}
{{- if .Source}}
  dataSource: {kind: {{.SourceKind}}, name: {{.Source}}{{if eq .SourceKind "VolumeSnapshot"}}, apiGroup: snapshot.storage.k8s.io{{end}}}
{{- end}}
---
apiVersion: v1
kind: Pod
metadata: {name: {{.Name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: tool
      image: {{.Image}}
      args: [echo-serve]
      {{if .Block}}volumeDevices: [{name: data, devicePath: /dev/data}]{{else}}volumeMounts: [{name: data, mountPath: /data}]{{end}}
  volumes: [{name: data, persistentVolumeClaim: {claimName: {{.Name}}}}]
`))

// create makes the claim and its pod, or the pod alone where the claim is there.
func (s *Session) create(ctx context.Context, c claim) error {
	return s.apply(ctx, claimAndPod, map[string]any{
		"Name": c.Name, "Class": c.class, "Block": c.block, "MiB": c.MiB,
		"SourceKind": c.SourceKind, "Source": c.Source, "Node": c.Node,
		"Image": vm.ToolImage,
	})
}

// start is create, and waits until the pod is Ready.
func (s *Session) start(ctx context.Context, c claim) error {
	if err := s.create(ctx, c); err != nil {
		return err
	}
	return s.ready(ctx, c.Name)
}

// ready waits until the pod is Ready.
func (s *Session) ready(ctx context.Context, pod string) error {
	return until(ctx, "pod "+pod, func() error {
		out, err := s.kubectl(ctx, "get", "pod", pod, "-o",
			`jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out != "True" {
			err = fmt.Errorf("not Ready: %q", out)
		}
		return err
	})
}

// stop deletes the pod and waits until it is gone.
func (s *Session) stop(ctx context.Context, pod string) error {
	_, err := s.kubectl(ctx, "delete", "pod", pod, "--wait=true")
	return err
}

// path is where on the node the pod's container has its volume from: the folder of the file system,
// or the device.
func (s *Session) path(ctx context.Context, c claim) (string, error) {
	uid, err := s.kubectl(ctx, "get", "pod", c.Name, "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		return "", err
	}
	volume, err := s.volume(ctx, c)
	if err != nil {
		return "", err
	}
	if c.block {
		return "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/" + volume + "/" +
			uid, nil
	}
	return "/var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~csi/" + volume + "/mount", nil
}

// volume is the claim's volume.
func (s *Session) volume(ctx context.Context, c claim) (string, error) {
	name, err := s.kubectl(ctx, "get", "pvc", c.Name, "-o", "jsonpath={.spec.volumeName}")
	if err == nil && !strings.HasPrefix(name, "veil-") {
		err = fmt.Errorf("claim %s has volume %q", c.Name, name)
	}
	return name, err
}
