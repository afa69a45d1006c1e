package sitenode

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

var keys = fmt.Sprintf(`"keys":[{"epoch":1,"publicKey":"%s"}]`, wgkey.Public{1})

func TestDecode(t *testing.T) {
	for _, c := range []struct{ situation, spec, want string }{
		{"both families", `{` + keys + `,"addresses":["198.18.1.11","fd42:9::1"]}`, ""},
		{"an address twice", `{` + keys + `,"addresses":["198.18.1.11","198.18.1.11"]}`, ""},
		{"a field of a newer version", `{` + keys + `,"addresses":["198.18.1.11"],"zone":"z"}`, ""},
		{"no key", `{"addresses":["198.18.1.11"]}`, "spec.keys: 0 keys"},
		{"no address", `{` + keys + `}`, "spec.addresses: 0 addresses, want 1 to 8"},
		{"nine addresses", `{` + keys + `,"addresses":["198.18.1.1"` +
			strings.Repeat(`,"198.18.1.1"`, 8) + `]}`, "9 addresses"},
		{"a name", `{` + keys + `,"addresses":["a.example"]}`, "spec.addresses[0]"},
		{"a zone", `{` + keys + `,"addresses":["fe80::1%eth0"]}`, "spec.addresses[0]"},
		{"loopback", `{` + keys + `,"addresses":["198.18.1.1","127.0.0.1"]}`, "spec.addresses[1]"},
		{"mapped", `{` + keys + `,"addresses":["::ffff:198.18.1.1"]}`, "spec.addresses[0]"},
		{"a number", `{` + keys + `,"addresses":[1]}`, "spec:"},
	} {
		t.Run(c.situation, func(t *testing.T) {
			claim, addrs, err := Decode([]byte(c.spec))
			switch {
			case c.want == "" && (err != nil || claim == nil || len(addrs) == 0):
				t.Errorf("claim %v, addresses %v: %v", claim, addrs, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// Any spec is decoded or refused, and what is decoded is within the bounds.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{` + keys + `,"addresses":["198.18.1.11","fd42:9::1"]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		claim, addrs, err := Decode(raw)
		if err == nil {
			again, err := Encode(*claim, addrs)
			errtest.Must(t, err)
			if same, _, err := Decode(again); err != nil || !veilnode.Same(same, claim) {
				t.Errorf("%s is decoded, encoded and decoded as %+v: %v", raw, same, err)
			}
		}
		if err == nil && (claim == nil || len(addrs) == 0 || len(addrs) > maxAddresses) {
			t.Errorf("claim %v, addresses %v", claim, addrs)
		}
	})
}

// specOf returns the schema of a custom resource's spec, and of its addresses.
func specOf(t *testing.T, file string) (spec map[string]any, kind, plural string) {
	t.Helper()
	var crd struct {
		Spec struct {
			Names    struct{ Kind, Plural string } `json:"names"`
			Versions []struct {
				Schema struct {
					V3 struct {
						Properties struct {
							Spec struct {
								Properties map[string]any `json:"properties"`
							} `json:"spec"`
						} `json:"properties"`
					} `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	errtest.Must(t, yaml.Unmarshal(filetest.Read(t, "../../../manifests/crd/"+file), &crd))
	return crd.Spec.Versions[0].Schema.V3.Properties.Spec.Properties, crd.Spec.Names.Kind,
		crd.Spec.Names.Plural
}

// The schema of SiteNode is the schema of VeilNode with addresses, which Decode bounds.
func TestSchemaHasTheFieldsOfVeilNodesAndAddresses(t *testing.T) {
	site, kind, plural := specOf(t, "sitenodes.yaml")
	if kind != object.SiteNodeKind || plural != object.SiteNodeResource {
		t.Errorf("kind %s, resource %s", kind, plural)
	}
	veil, _, _ := specOf(t, "veilnodes.yaml")
	var addresses struct {
		MinItems, MaxItems int
		Items              struct {
			MaxLength int
			Pattern   string
		}
	}
	text, err := json.Marshal(site["addresses"])
	errtest.Must(t, err)
	errtest.Must(t, json.Unmarshal(text, &addresses))
	if addresses.MinItems != 1 || addresses.MaxItems != maxAddresses {
		t.Errorf("the schema allows %d to %d addresses", addresses.MinItems, addresses.MaxItems)
	}
	for _, a := range []string{"198.18.1.11", "fd42:1111:2222:3333:4444:5555:6666:7777"} {
		if !regexp.MustCompile(addresses.Items.Pattern).MatchString(a) ||
			len(a) > addresses.Items.MaxLength {
			t.Errorf("the schema refuses %s", a)
		}
	}

	delete(site, "addresses")
	for name, want := range veil {
		if got := withoutDescription(t, site[name]); got != withoutDescription(t, want) {
			t.Errorf("%s: the schema is %s, want %s", name, got, withoutDescription(t, want))
		}
		delete(site, name)
	}
	if len(site) > 0 {
		t.Errorf("the schema has more: %v", site)
	}
}

// withoutDescription returns the text of a schema without its outermost description.
func withoutDescription(t *testing.T, schema any) string {
	t.Helper()
	if part, ok := schema.(map[string]any); ok {
		delete(part, "description")
	}
	text, err := json.Marshal(schema)
	errtest.Must(t, err)
	return string(text)
}
