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

// Group, version, kind and resource of the custom resource; manifests/csi/crd has its schema.
const (
	Group    = "csi.kubeveil.io"
	Version  = "v1alpha1"
	Kind     = "VeilVolume"
	Resource = "veilvolumes"
)

// VeilVolumes is where they are served.
var VeilVolumes = schema.GroupVersionResource{Group: Group, Version: Version, Resource: Resource}

// Spec is the specification of a VeilVolume.
type Spec struct {
	// Cluster is the id of the cluster: the UID of the namespace kube-system.
	Cluster string `json:"cluster"`
	volume.Request
	Asked
}

// Asked is a person's request for a volume.
type Asked struct {
	// Rewrap, when not empty, requests to wrap the volume's key by the present key-encryption key.
	// Its value distinguishes requests; the node removes it when that is done.
	Rewrap string `json:"rewrap,omitempty"`
	// Destroy requests that the node that has the volume destroy it: the volume has no
	// PersistentVolume or VolumeSnapshotContent whose deletion would.
	Destroy bool `json:"destroy,omitempty"`
	// TakeOver, unless nil, lets another node take the volume.
	TakeOver *TakeOver `json:"takeOver,omitempty"`
}

// TakeOver names a node that will not return, and the one that may open its volume.
type TakeOver struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// object is a VeilVolume as it is sent.
type object struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       *Spec          `json:"spec,omitempty"`
	Status     map[string]any `json:"status,omitempty"`
}

// inSpec are the fields of a state that are the object's name and in its spec.
var inSpec = []string{"volume", "cluster", "request"}

// specOf and statusOf are the two halves of a state.
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

// labels are on every object from its creation on.
var labels = map[string]string{"app.kubernetes.io/name": "kubeveil",
	"app.kubernetes.io/component": "veil-csi"}

// encode makes the object to send. An empty revision means that the object is to be created.
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

// errNoStatus matches an object without status.
var errNoStatus = fmt.Errorf("%w: the VeilVolume has no status: its creation was cut short, or it "+
	"was restored without one", volume.ErrState)

// parse returns what o says. The spec is given with errNoStatus, too.
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

// parseText reads a VeilVolume. An unknown field of spec or status is refused: it would be lost at
// the next update.
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
		return volume.State{}, spec, fmt.Errorf("%w: status has what belongs into spec",
			volume.ErrState)
	}

	s.Volume, s.Cluster, s.Request = o.Metadata.Name, spec.Cluster, spec.Request
	return s, spec, s.Check()
}

// decode reads exactly one JSON value, whose fields must be known; numbers in maps keep their
// digits.
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
