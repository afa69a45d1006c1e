package claims

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

// Kind is a StorageClass of the run. It is like a shipped class, but a Secret wraps its keys.
type Kind struct {
	Class string
	Block bool
}

// The classes of the run.
var (
	Ext4  = Kind{Class: "e2e-ext4"}
	XFS   = Kind{Class: "e2e-xfs"}
	Block = Kind{Class: "e2e-block", Block: true}
)

// setup has the Secret, the side-cars' right to read it, and the classes.
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

// SetUp applies setup with a new random key.
func (s Client) SetUp(ctx context.Context) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	type class struct{ Name, FS string }
	return s.Apply(ctx, setup, map[string]any{
		"Key":     base64.StdEncoding.EncodeToString(key),
		"Classes": []class{{Ext4.Class, "ext4"}, {XFS.Class, "xfs"}, {Block.Class, ""}},
		"Secrets": []string{"provisioner", "node-stage", "node-expand"},
	})
}

// Apply executes a template with data and applies the result.
func (s Client) Apply(ctx context.Context, t *template.Template, data any) error {
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return err
	}
	return s.Cluster.Apply(ctx, b.Bytes())
}

// Claim is a PersistentVolumeClaim with a pod of the same name that uses it.
type Claim struct {
	Name string
	Kind
	// MiB is the size in MiB.
	MiB int
	// SourceKind and Source are the kind and name of the object that the claim copies. Both may be
	// empty.
	SourceKind, Source string
	// Node is the node on which the volume is made. Empty leaves the choice to the scheduler.
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

// Create makes the claim and its pod, or only the pod if the claim exists.
func (s Client) Create(ctx context.Context, c Claim) error {
	return s.Apply(ctx, claimAndPod, map[string]any{
		"Name": c.Name, "Class": c.Class, "Block": c.Block, "MiB": c.MiB,
		"SourceKind": c.SourceKind, "Source": c.Source, "Node": c.Node,
		"Image": vm.ToolImage,
	})
}

// Start calls Create, and waits until the pod is Ready.
func (s Client) Start(ctx context.Context, c Claim) error {
	if err := s.Create(ctx, c); err != nil {
		return err
	}
	return s.Ready(ctx, c.Name)
}

// Ready waits until the pod is Ready.
func (s Client) Ready(ctx context.Context, pod string) error {
	return Until(ctx, "pod "+pod, func() error {
		out, err := s.Kubectl(ctx, "get", "pod", pod, "-o",
			`jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out != "True" {
			err = fmt.Errorf("not Ready: %q", out)
		}
		return err
	})
}

// Stop deletes the pod and waits until it is gone.
func (s Client) Stop(ctx context.Context, pod string) error {
	_, err := s.Kubectl(ctx, "delete", "pod", pod, "--wait=true")
	return err
}

// Path returns the path on the node of the volume that the pod's container has: the folder of the
// file system, or the device.
func (s Client) Path(ctx context.Context, c Claim) (string, error) {
	uid, err := s.Kubectl(ctx, "get", "pod", c.Name, "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		return "", err
	}
	volume, err := s.Volume(ctx, c)
	if err != nil {
		return "", err
	}
	if c.Block {
		return "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/" + volume + "/" +
			uid, nil
	}
	return "/var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~csi/" + volume + "/mount", nil
}

// Volume returns the name of the claim's volume.
func (s Client) Volume(ctx context.Context, c Claim) (string, error) {
	name, err := s.Kubectl(ctx, "get", "pvc", c.Name, "-o", "jsonpath={.spec.volumeName}")
	if err == nil && !strings.HasPrefix(name, "veil-") {
		err = fmt.Errorf("claim %s has volume %q", c.Name, name)
	}
	return name, err
}
