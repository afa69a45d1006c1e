package config

import (
	"reflect"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Every flag has an existing key, and every key has a flag. Sites have none, because a site has
// several ranges, which one text could not hold legibly.
func TestEveryKeyHasAFlag(t *testing.T) {
	byPath := map[string]bool{}
	for _, f := range flags {
		byPath[f.path] = true
	}
	var walk func(path string, typ reflect.Type)
	walk = func(path string, typ reflect.Type) {
		for i, key := range keysOf(typ) {
			if f := typ.Field(i).Type; f.Kind() == reflect.Struct {
				walk(join(path, key), f)
			} else if !byPath[join(path, key)] && f != reflect.TypeFor[[]cluster.Site]() {
				t.Errorf("%s has no flag", join(path, key))
			} else {
				delete(byPath, join(path, key))
			}
		}
	}
	walk("", reflect.TypeFor[Config]())
	if len(byPath) > 0 {
		t.Errorf("flags for keys that are not there: %v", byPath)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"kitten", "sitting", 3}, {"mtu", "mtu", 0}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// A configuration that is accepted is the same after it was written out and read again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("node: a\nclusterRanges: [10.244.0.0/16]\nserviceRanges: [10.96.0.0/12]\n"))
	f.Add([]byte(`{"tunnel":{"port":1},"cni":{"portmap":false},"mtu":1500}`))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var c Config
		if unreadable, bad := decode(text, &c); unreadable != nil || len(bad) > 0 ||
			c.Validate() != nil {
			return
		}
		out, err := yaml.Marshal(c)
		errtest.Must(t, err)
		var again Config
		if unreadable, problems := decode(out, &again); unreadable != nil || len(problems) > 0 ||
			!reflect.DeepEqual(c, again) {
			t.Errorf("%v\n%+v\n%+v", problems, c, again)
		}
	})
}

func FuzzKubeadm(f *testing.F) {
	f.Add([]byte("kind: ClusterConfiguration\nnetworking: {podSubnet: 10.0.0.0/8}\n---\nkind: x"))
	f.Add([]byte("kind: ConfigMap\ndata:\n  ClusterConfiguration: |\n    kind: " +
		"ClusterConfiguration\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ParseKubeadm(text)
		if err != nil {
			return
		}
		for _, p := range append(r.Pod, r.Service...) {
			if !p.IsValid() || p != p.Masked() {
				t.Errorf("%v", p)
			}
		}
	})
}

func FuzzMarker(f *testing.F) {
	f.Add(
		[]byte(
			`{"bootID":"a","families":{"v4":true,"v6":false},"devices":["veil0"],"written":"2026-01-01T00:00:00Z"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := abi.ParseMarker(text)
		if err != nil {
			return
		}
		out, err := m.Encode()
		errtest.Must(t, err)
		if again, err := abi.ParseMarker(out); err != nil || again.BootID != m.BootID ||
			again.Families != m.Families {
			t.Errorf("%v: %+v %+v", err, m, again)
		}
	})
}
