package kubestore

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// full returns a state with every field set.
func full() volume.State {
	return volume.State{
		Volume: "pvc-1", Cluster: "c", Request: volume.Request{Node: "n", Backend: "file",
			Source: "snap-1", Snapshot: true, Parameters: "p",
			Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		Phase: volume.Ready, Payload: 8192, PendingPayload: 12288,
		Key: keyring.Wrapped{Provider: "kms", KeyID: "k", Blob: []byte{1, 2, 255},
			Annotations: map[string][]byte{"a.b": {3}}},
		UUID: crypt.UUID{1, 2}, Device: "d", Origin: volume.Origin{UUID: crypt.UUID{3}, Sequence: 4,
			Epoch: 5, Payload: 4096}, Content: volume.Made, Writer: "w", Epoch: 1<<53 + 1,
		PendingEpoch: 1<<53 + 2,
	}
}

func TestEncodeAndParse(t *testing.T) {
	for situation, want := range map[string]volume.State{
		"every field": full(),
		"new": {Volume: "v", Cluster: "c", Phase: volume.New, Payload: 4096,
			Content: volume.Unmade},
	} {
		t.Run(situation, func(t *testing.T) {
			status, err := statusOf(want)
			errtest.Must(t, err)
			o, err := encode(want.Volume, "7", specOf(want), status)
			errtest.Must(t, err)
			got, _, err := parse(o)
			if err != nil || !cmp.Equal(got, want) {
				t.Errorf("%v %s", err, cmp.Diff(want, got))
			}
			if o.GetName() != want.Volume || o.GetResourceVersion() != "7" {
				t.Errorf("name %q, revision %q", o.GetName(), o.GetResourceVersion())
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	const good = `"phase":"New","payload":4096,"content":"Unmade"`

	for situation, c := range map[string]struct {
		spec, status string
		want         error
	}{
		"nothing":   {`null`, `null`, errNoStatus},
		"no status": {`{"cluster":"c"}`, `{}`, errNoStatus},
		"unknown field in status": {`{"cluster":"c"}`, `{` + good + `,"integrity":"x"}`,
			volume.ErrState},
		"unknown field in spec": {`{"cluster":"c","tuning":"x"}`, `{` + good + `}`,
			volume.ErrState},
		"name in status": {`{"cluster":"c"}`, `{"volume":"other",` + good + `}`,
			volume.ErrState},
		"request in status": {`{"cluster":"c"}`, `{"request":{"node":"x"},` + good + `}`,
			volume.ErrState},
		"no cluster": {`{}`, `{` + good + `}`, volume.ErrState},
		"a size below zero": {`{"cluster":"c"}`,
			`{"phase":"New","payload":-4096,"content":"Unmade"}`, volume.ErrState},
		"a number that is none": {`{"cluster":"c"}`,
			`{"phase":"New","payload":"4096","content":"Unmade"}`, volume.ErrState},
		"ready without key": {`{"cluster":"c"}`,
			`{"phase":"Ready","payload":4096,"content":"Unmade"}`, volume.ErrState},
		"a list where an object is": {`[]`, `{` + good + `}`, volume.ErrState},
		"an epoch beyond what integer": {`{"cluster":"c"}`,
			`{` + good + `,"epoch":18446744073709551616}`, volume.ErrState},
	} {
		s, _, err := parseText([]byte(`{"metadata":{"name":"v"},"spec":` + c.spec + `,"status":` +
			c.status + `}`))
		if !errors.Is(err, c.want) || !errors.Is(err, volume.ErrState) || err == nil {
			t.Errorf("%s: %+v, %v; want %v", situation, s, err, c.want)
		}
	}
}

// Each parsed object is encoded to a form that parses to the same object.
func FuzzParse(f *testing.F) {
	f.Add(
		[]byte(
			`{"metadata":{"name":"v"},"spec":{"cluster":"c"},"status":{"phase":"New","payload":4096,"content":"Unmade"}}`))
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "pvc-1"},
		"spec": specOf(full()), "status": must(statusOf(full()))})
	errtest.Must(f, err)

	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		s, spec, err := parseText(text)
		if err != nil {
			return
		}
		status, err := statusOf(s)
		errtest.Must(t, err)
		o, err := encode(s.Volume, "1", &spec, status)
		errtest.Must(t, err)
		again, specAgain, err := parse(o)
		if err != nil || !cmp.Equal(again, s) || !cmp.Equal(specAgain, spec) {
			t.Errorf("%v %s", err, cmp.Diff(s, again))
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// property contains the parts of a schema that the test compares.
type property struct {
	Type       string              `json:"type"`
	Properties map[string]property `json:"properties"`
	Enum       []string            `json:"enum"`
	MaxLength  int                 `json:"maxLength"`
}

// The schema has exactly the fields that are written. The API server would refuse fields that the
// schema lacks.
func TestSchemaIsTheState(t *testing.T) {
	text := filetest.Read(t, "../../manifests/csi/crd/veilvolumes.yaml")

	var crd struct {
		Spec struct {
			Group string
			Names struct{ Kind, Plural string }
			Scope string
			// Versions has one element.
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema property }
			}
		}
	}
	errtest.Must(t, yaml.Unmarshal(text, &crd))

	v := crd.Spec.Versions[0]
	if crd.Spec.Group != Group || crd.Spec.Names.Kind != Kind ||
		crd.Spec.Names.Plural != Resource || v.Name != Version || crd.Spec.Scope != "Cluster" {
		t.Errorf("the resource is %s/%s %s %s, %s", crd.Spec.Group, v.Name, crd.Spec.Names.Kind,
			crd.Spec.Names.Plural, crd.Spec.Scope)
	}

	schema := v.Schema.OpenAPIV3Schema
	compare(t, "spec", schema.Properties["spec"], reflect.TypeFor[Spec]())
	compare(t, "status", schema.Properties["status"], reflect.TypeFor[volume.State](), inSpec...)
	status := schema.Properties["status"].Properties
	if got := status["phase"].Enum; !slices.Equal(got,
		[]string{string(volume.New), string(volume.Formatting), string(volume.Ready),
			string(volume.Deleted)}) {
		t.Errorf("phases %q", got)
	}
	if got := status["content"].Enum; !slices.Equal(got,
		[]string{string(volume.Unmade), string(volume.Made)}) {
		t.Errorf("contents %q", got)
	}
	if n := schema.Properties["spec"].Properties["cluster"].MaxLength; n != crypt.MaxName {
		t.Errorf("a cluster's id has up to %d bytes, want %d", n, crypt.MaxName)
	}
}

// compare compares a schema with the fields of a struct, except for the fields in except.
func compare(t *testing.T, at string, p property, typ reflect.Type, except ...string) {
	t.Helper()
	want := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(typ) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && !slices.Contains(except, name) {
			want[name] = f.Type
		}
	}

	for name, typ := range want {
		q, ok := p.Properties[name]
		if !ok {
			t.Errorf("%s.%s: not in the schema", at, name)
			continue
		}
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		switch {
		case typ == reflect.TypeFor[time.Time]():
			if q.Type != "string" {
				t.Errorf("%s.%s: type %s for a time", at, name, q.Type)
			}
		case typ.Kind() == reflect.Struct:
			compare(t, at+"."+name, q, typ)
		case kinds[typ.Kind()] != "" && q.Type != kinds[typ.Kind()]:
			t.Errorf("%s.%s: type %s for %s", at, name, q.Type, typ)
		}
	}

	for name := range p.Properties {
		if want[name] == nil {
			t.Errorf("%s.%s: the field is never written", at, name)
		}
	}
}

var kinds = map[reflect.Kind]string{
	reflect.String: "string", reflect.Bool: "boolean", reflect.Int64: "integer",
	reflect.Uint64: "integer", reflect.Map: "object",
}

func TestNamesThatNoObjectCanHave(t *testing.T) {
	for _, name := range []string{"", "Upper", "a_b", "../x", "a b", strings.Repeat("a", 254)} {
		if _, err := (&Store{}).check(volume.State{Volume: name, Cluster: "c", Phase: volume.New,
			Payload: 4096, Content: volume.Unmade}); err == nil {
			t.Errorf("%q was accepted", name)
		}
	}
}
