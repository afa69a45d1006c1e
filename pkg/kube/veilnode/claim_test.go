package veilnode

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

func key(n byte) wgkey.Public {
	var p wgkey.Public
	p[0], p[31] = n, n
	return p
}

func TestDecode(t *testing.T) {
	k := key(1).String()
	keys := `"keys":[{"epoch":1,"publicKey":"` + k + `"}]`

	for _, c := range []struct{ situation, spec, want string }{
		{"one key", `{` + keys + `}`, ""},
		{"everything", `{` + keys +
			`,"endpoints":["198.18.0.1:1","[fd42::1]:2"],"podPrefixes":["198.18.0.0/24","fd42::/64"],"mtu":9000,"evidence":"e"}`, ""},
		{"a field of a newer version", `{` + keys + `,"lanes":4}`, ""},
		{"nothing", ``, "spec:"},
		{"null", `null`, "0 keys"},
		{"five keys", `{"keys":[{},{},{},{},{}]}`, "5 keys"},
		{"same epoch twice", `{"keys":[{"epoch":1,"publicKey":"` + k +
			`"},{"epoch":1,"publicKey":"` + key(2).String() + `"}]}`, "appears twice"},
		{"same key twice", `{"keys":[{"epoch":1,"publicKey":"` + k + `"},{"epoch":2,"publicKey":"` +
			k + `"}]}`, "appears twice"},
		{"key of zeroes", `{"keys":[{"epoch":1,"publicKey":"` + key(0).String() + `"}]}`, "zeroes"},
		{"key with stray bits", `{"keys":[{"epoch":1,"publicKey":"` + k[:42] + `B="}]}`,
			"not base64"},
		{"epoch too large", `{"keys":[{"epoch":4294967296,"publicKey":"` + k + `"}]}`, "spec:"},
		{"host name as endpoint", `{` + keys + `,"endpoints":["a.example:1"]}`,
			"spec.endpoints[0]"},
		{"endpoint without port", `{` + keys + `,"endpoints":["198.18.0.1:0"]}`,
			"spec.endpoints[0]"},
		{"endpoint with zone", `{` + keys + `,"endpoints":["[fe80::1%eth0]:1"]}`,
			"spec.endpoints[0]"},
		{"multicast endpoint", `{` + keys + `,"endpoints":["224.0.0.1:1"]}`, "spec.endpoints[0]"},
		{"mapped endpoint", `{` + keys + `,"endpoints":["[::ffff:198.18.0.1]:1"]}`,
			"spec.endpoints[0]"},
		{"two endpoints of a family", `{` + keys + `,"endpoints":["198.18.0.1:1","198.18.0.2:1"]}`,
			"second of its family"},
		{"three prefixes", `{` + keys +
			`,"podPrefixes":["198.18.0.0/24","198.18.1.0/24","198.18.2.0/24"]}`, "podPrefixes: 3"},
		{"prefix with host bits", `{` + keys + `,"podPrefixes":["198.18.0.1/24"]}`, "host bits"},
		{"negative mtu", `{` + keys + `,"mtu":-1}`, "spec.mtu"},
		{"huge evidence", `{` + keys + `,"evidence":"` + strings.Repeat("x", maxEvidence+1) + `"}`,
			"spec.evidence"},
		{"huge", `{"x":"` + strings.Repeat("x", maxSpec) + `"}`, "bytes"},
	} {
		got, err := Decode([]byte(c.spec))
		switch {
		case c.want == "" && (err != nil || got == nil):
			t.Errorf("%s: %v", c.situation, err)
		case c.want != "" && (err == nil || got != nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: claim %v, error %v, want one with %q", c.situation, got, err, c.want)
		}
	}
}

// Features are advice: a list of a newer version costs no node its claim.
func TestDecodeKeepsUsableFeatures(t *testing.T) {
	many := make([]string, maxFeatures+1)
	for i := range many {
		many[i] = fmt.Sprintf("f%03d", i)
	}

	for _, tc := range []struct {
		situation string
		features  []string
		want      []string
	}{
		{"none", nil, nil},
		{"known and unknown", []string{"unknown-fields", "epoch-ports"},
			[]string{"epoch-ports", "unknown-fields"}},
		{"twice", []string{"b", "a", "b"}, []string{"a", "b"}},
		{"malformed ones", []string{"", "A", "a b", "a\n", strings.Repeat("x", maxFeature+1), "ok"},
			[]string{"ok"}},
		{"too many", many, many[:maxFeatures]},
	} {
		raw, err := json.Marshal(map[string]any{"keys": []keySpec{{1, key(1).String()}},
			"features": tc.features})
		errtest.Must(t, err)
		c, err := Decode(raw)
		if err != nil {
			t.Errorf("%s: %v", tc.situation, err)
			continue
		}
		if got := fmt.Sprint(c.Features); got != fmt.Sprint(tc.want) ||
			c.Has("unknown-fields") != slices.Contains(tc.want, "unknown-fields") {
			t.Errorf("%s: features %s, want %s", tc.situation, got, tc.want)
		}
	}
}

func TestKeysAreSortedByEpoch(t *testing.T) {
	c, err := Decode([]byte(`{"keys":[{"epoch":7,"publicKey":"` + key(7).String() +
		`"},{"epoch":3,"publicKey":"` + key(3).String() + `"}]}`))
	if err != nil || c.Keys[0].Epoch != 3 || c.Keys[1].Epoch != 7 {
		t.Errorf("claim %+v, error %v", c, err)
	}
}

func FuzzDecode(f *testing.F) {
	raw, err := Encode(cluster.Claim{Keys: []cluster.Key{{Epoch: 1, Public: key(1)}}, MTU: 1500,
		Endpoints:   []netip.AddrPort{netip.MustParseAddrPort("198.19.0.1:51820")},
		PodPrefixes: []netip.Prefix{netip.MustParsePrefix("198.18.1.0/24")}})
	errtest.Must(f, err)
	f.Add(raw)
	f.Add(
		[]byte(
			`{"keys":[{"epoch":1,"publicKey":"AAAA"}],"endpoints":["[::]:0"],"podPrefixes":["::/0"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Decode(data)
		if err != nil {
			return
		}
		raw, err := Encode(*c)
		if err != nil {
			t.Fatalf("decoded %+v does not encode: %v", c, err)
		}
		again, err := Decode(raw)
		if err != nil || !Same(c, again) {
			t.Fatalf("%+v became %+v (%v)", c, again, err)
		}
	})
}

// schemaPart is the part of a structural schema that is compared here.
type schemaPart struct {
	Properties map[string]schemaPart `json:"properties"`
	Items      *schemaPart           `json:"items"`
	MinItems   int                   `json:"minItems"`
	MaxItems   int                   `json:"maxItems"`
	MaxLength  int                   `json:"maxLength"`
	Maximum    int64                 `json:"maximum"`
	Pattern    string                `json:"pattern"`
}

func TestSchemaSaysWhatDecodeSays(t *testing.T) {
	data := filetest.Read(t, "../../../manifests/crd/veilnodes.yaml")

	var crd struct {
		Spec struct {
			Group string `json:"group"`
			Names struct {
				Kind   string `json:"kind"`
				Plural string `json:"plural"`
			} `json:"names"`
			Versions []struct {
				Name   string `json:"name"`
				Schema struct {
					V3 schemaPart `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	errtest.Must(t, yaml.Unmarshal(data, &crd))

	v := crd.Spec.Versions[0]
	if crd.Spec.Group != Group || crd.Spec.Names.Kind != Kind ||
		crd.Spec.Names.Plural != Resource || v.Name != Version {
		t.Errorf("the resource is %s/%s %s %s", crd.Spec.Group, v.Name, crd.Spec.Names.Kind,
			crd.Spec.Names.Plural)
	}

	p := v.Schema.V3.Properties["spec"].Properties
	keys := p["keys"]
	for what, pair := range map[string][2]int64{
		"keys.minItems":       {int64(keys.MinItems), 1},
		"keys.maxItems":       {int64(keys.MaxItems), maxKeys},
		"keys.epoch.maximum":  {keys.Items.Properties["epoch"].Maximum, 1<<32 - 1},
		"endpoints.maxItems":  {int64(p["endpoints"].MaxItems), maxFamilies},
		"podPrefixes":         {int64(p["podPrefixes"].MaxItems), maxFamilies},
		"mtu.maximum":         {p["mtu"].Maximum, maxMTU},
		"evidence.maxLength":  {int64(p["evidence"].MaxLength), maxEvidence},
		"features.maxItems":   {int64(p["features"].MaxItems), maxFeatures},
		"features.maxLength":  {int64(p["features"].Items.MaxLength), maxFeature},
		"properties, of spec": {int64(len(p)), 6},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: the schema says %d, the code %d", what, pair[0], pair[1])
		}
	}

	keyPattern := regexp.MustCompile(keys.Items.Properties["publicKey"].Pattern)
	endpoint, prefix := regexp.MustCompile(p["endpoints"].Items.Pattern),
		regexp.MustCompile(p["podPrefixes"].Items.Pattern)
	for i := range 256 {
		if k := key(byte(i)).String(); !keyPattern.MatchString(k) {
			t.Errorf("the schema refuses the key %s", k)
		}
	}

	if keyPattern.MatchString(key(1).String()[:42] + "B=") {
		t.Error("the schema accepts a key with stray bits")
	}

	feature := regexp.MustCompile(p["features"].Items.Pattern)
	for _, f := range cluster.Features() {
		if !feature.MatchString(string(f)) || len(decodeFeatures([]cluster.Feature{f})) != 1 {
			t.Errorf("the schema or the code refuses the feature %s", f)
		}
	}

	for _, s := range []string{"198.18.0.1:51820", "[fd42::1]:51820",
		"[fd42:1111:2222:3333:4444:5555:6666:7777]:65535"} {
		if !endpoint.MatchString(s) || len(s) > p["endpoints"].Items.MaxLength {
			t.Errorf("the schema refuses the endpoint %s", s)
		}
	}

	for _, s := range []string{"198.18.0.0/24", "fd42::/64",
		"fd42:1111:2222:3333:4444:5555:6666:7777/128", "::/0"} {
		if !prefix.MatchString(s) || len(s) > p["podPrefixes"].Items.MaxLength {
			t.Errorf("the schema refuses the prefix %s", s)
		}
	}
}
