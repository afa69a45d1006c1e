package kubestore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/csi/volume"
)

// Group, version, kind and resource of the custom resource. Its schema is in manifests/csi/crd.
const (
	Group    = "csi.kubeveil.io"
	Version  = "v1alpha1"
	Kind     = "VeilVolume"
	Resource = "veilvolumes"
)

// VeilVolumes is the resource of the API server that serves VeilVolumes.
var VeilVolumes = schema.GroupVersionResource{Group: Group, Version: Version, Resource: Resource}

// Spec is the specification of a VeilVolume.
type Spec struct {
	// Cluster is the id of the cluster: the UID of the namespace kube-system.
	Cluster string `json:"cluster"`
	volume.Request
	Asked
}

// Asked holds the requests of users for a volume.
type Asked struct {
	// Rewrap, unless empty, requests to rewrap the volume's key with the present key-encryption
	// key. Its value distinguishes requests. The node removes it once the request is done.
	Rewrap string `json:"rewrap,omitempty"`
	// Destroy requests that the node that has the volume destroy it. It is for a volume without a
	// PersistentVolume or VolumeSnapshotContent that a user could delete instead.
	Destroy bool `json:"destroy,omitempty"`
	// TakeOver, unless nil, allows another node to take the volume over.
	TakeOver *TakeOver `json:"takeOver,omitempty"`
}

// TakeOver names a node that will not return (From), and the node that may open its volume (To).
type TakeOver struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// object is the JSON form of a VeilVolume.
type object struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       *Spec          `json:"spec,omitempty"`
	Status     map[string]any `json:"status,omitempty"`
}

// inSpec are the fields of a state that are not in the object's status, but are its name or in its
// spec.
var inSpec = []string{"volume", "cluster", "request"}

// specOf and statusOf return the spec and the status of a state's VeilVolume.
func specOf(s volume.State) *Spec { return &Spec{Cluster: s.Cluster, Request: s.Request} }

func statusOf(s volume.State) (map[string]any, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	status := map[string]any{}
	if err := decode(text, &status); err != nil {
		return nil, err
	}
	for _, field := range inSpec {
		delete(status, field)
	}
	return status, nil
}

// labels are the labels of each created object.
var labels = map[string]string{"app.kubernetes.io/name": "kubeveil",
	"app.kubernetes.io/component": "veil-csi"}

// encode returns the object to send to the API server. An empty revision means that the object will
// be created.
func encode(name string, r volume.Revision, spec *Spec,
	status map[string]any) (*unstructured.Unstructured, error) {
	o := object{APIVersion: Group + "/" + Version, Kind: Kind,
		Metadata: map[string]any{"name": name}, Spec: spec, Status: status}
	if r == "" {
		o.Metadata["labels"] = labels
	} else {
		o.Metadata["resourceVersion"] = string(r)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", name, err)
	}
	out := &unstructured.Unstructured{}
	if err := out.UnmarshalJSON(text); err != nil {
		return nil, fmt.Errorf("volume %s: %w", name, err)
	}
	return out, nil
}

// errNoStatus means that a VeilVolume has no status.
var errNoStatus = fmt.Errorf("%w: the VeilVolume has no status: its creation was cut short, or it "+
	"was restored without one", volume.ErrState)

// parse returns the state and spec of o. With errNoStatus, it also returns the spec.
func parse(o *unstructured.Unstructured) (volume.State, Spec, error) {
	name := o.GetName()
	text, err := o.MarshalJSON()
	if err != nil {
		return volume.State{}, Spec{}, fmt.Errorf("volume %s: %w: %w", name, volume.ErrState, err)
	}
	s, spec, err := parseText(text)
	if err != nil {
		return volume.State{}, spec, fmt.Errorf("volume %s: %w", name, err)
	}
	return s, spec, nil
}

// parseText parses a VeilVolume in JSON. It refuses unknown fields in spec and status, because the
// next update would lose them.
func parseText(text []byte) (volume.State, Spec, error) {
	var o struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec   json.RawMessage `json:"spec"`
		Status json.RawMessage `json:"status"`
	}
	var spec Spec
	var s volume.State
	if err := json.Unmarshal(text, &o); err != nil {
		return s, spec, fmt.Errorf("%w: %w", volume.ErrState, err)
	}

	if err := decode(o.Spec, &spec); err != nil {
		return s, spec, fmt.Errorf("%w: spec: %w", volume.ErrState, err)
	}
	if len(o.Status) == 0 || string(o.Status) == "{}" || string(o.Status) == "null" {
		return s, spec, errNoStatus
	}
	if err := decode(o.Status, &s); err != nil {
		return volume.State{}, spec, fmt.Errorf("%w: status: %w", volume.ErrState, err)
	}
	if s.Volume != "" || s.Cluster != "" || !s.Request.Created.IsZero() ||
		!same(s.Request, volume.Request{}) {
		return volume.State{}, spec, fmt.Errorf("%w: status has fields that belong in spec",
			volume.ErrState)
	}

	s.Volume, s.Cluster, s.Request = o.Metadata.Name, spec.Cluster, spec.Request
	return s, spec, s.Check()
}

// decode parses exactly one JSON value into v. It refuses unknown fields. Numbers in maps keep
// their digits.
func decode(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return err
	}
	if d.More() {
		return errors.New("more than one value")
	}
	return nil
}
