package servers

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// wantError fails the test unless the error contains the text. If the text is empty, it fails the
// test for any error.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

// These are errors: a node that is NotReady, a node that was NotReady between two looks, and a
// kubelet that does not renew its lease.
func TestNodesThatALostServerTakes(t *testing.T) {
	began := time.Unix(1_000_000, 0)
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	well := func(renewed int) map[string]nodeView {
		return map[string]nodeView{"n": {ready: true, since: began.Add(-time.Hour),
			renewed: at(renewed)}}
	}

	for _, tt := range []struct {
		name, want string
		each       func(second int) map[string]nodeView
	}{
		{"as usual", "", func(s int) map[string]nodeView { return well(s / 10 * 10) }},
		{"one renewal is late", "", func(s int) map[string]nodeView { return well(s / 20 * 20) }},
		{"silent", "lease was not renewed for 75.0 s",
			func(int) map[string]nodeView { return well(0) }},
		{"NotReady at the end", "node n: Ready is false", func(s int) map[string]nodeView {
			v := well(s)
			if s >= 55 {
				v["n"] = nodeView{since: at(55), renewed: at(s)}
			}
			return v
		}},
		{"NotReady for a moment that was not seen", "node n: Ready is true since",
			func(s int) map[string]nodeView {
				v := well(s)
				if s >= 30 {
					v["n"] = nodeView{ready: true, since: at(30), renewed: at(s)}
				}
				return v
			}},
		{"gone", "node n: Ready is false", func(s int) map[string]nodeView {
			if s > 5 {
				return nil
			}
			return well(s)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newNodeWatch(began, well(0), []string{"n"})
			for s := 1; s <= 75; s++ {
				w.see(at(s), tt.each(s))
			}
			err := w.err()
			wantError(t, err, tt.want)
		})
	}
}

func TestClientsOfALostServer(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		c          apiClients
	}{
		{"served again", "", apiClients{16, []int64{5900, 6000}, 170, []int64{5000, 5250, 5900}}},
		{"none failed", "", apiClients{16, []int64{5900}, 170, nil}},
		{"new ones failed for long", "began after 3.0 s",
			apiClients{16, []int64{5900}, 170, []int64{5000, 8000}}},
		{"held ones stayed for long", "closed after 7.0 s",
			apiClients{16, []int64{5900, 12000}, 170, []int64{5000}}},
		{"all were held at the one that stayed", "0 of 16 held", apiClients{16, nil, 170, nil}},
		{"all were closed", "16 of 16 held", apiClients{16, make([]int64, 16), 170, nil}},
		{"it stood still", "only 3 new", apiClients{16, []int64{5900}, 3, nil}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.c.judge(newWithin, heldWithin)
			wantError(t, err, tt.want)
		})
	}
}

// The client's lines are read as soon as they are printed. An end without a result is an error.
func TestClientIsRead(t *testing.T) {
	for said, want := range map[string]string{
		"open\nclosed 1\n{\"opened\":16,\"closed\":[1],\"asked\":9}\n": "",
		"open\nclosed 1\n": "its last line is \"closed 1\"", "": "its last line is \"\""} {
		c := &apiClient{name: "p", open: make(chan struct{}), done: make(chan struct{})}
		c.read(strings.NewReader(said))
		wantError(t, c.err, want)
		if err := c.waitOpen(); said == "" && err == nil {
			t.Errorf("%q counts as open", said)
		}
		if want == "" && (c.result().Opened != 16 || c.result().Asked != 9) {
			t.Errorf("%q: %+v", said, c.got)
		}
	}
}

func TestPeersOfConnections(t *testing.T) {
	got, err := parsePeers("198.18.0.3:6443\n[::ffff:198.18.0.2]:6443\n198.18.0.3:6443\n")
	if err != nil || len(got) != 2 || got[0] != netip.MustParseAddrPort("198.18.0.2:6443") ||
		got[1] != netip.MustParseAddrPort("198.18.0.3:6443") {
		t.Errorf("peers %v, %v", got, err)
	}
	if _, err := parsePeers("users:((\"kubelet\",pid=1,fd=3))"); err == nil {
		t.Error("a process counts as a peer")
	}
}

// veild accepts the configurations of both cases. The configurations differ in one key.
func TestConfigurationOfTwoServers(t *testing.T) {
	first, second := netip.MustParseAddrPort("198.18.0.2:6443"),
		netip.MustParseAddrPort("198.18.0.3:6443")
	const base = "# a comment\nkubeadmConfig: /etc/kubeveil/kubeadm.yaml\nsource:\n" +
		"  kind: kubernetes\n  kubeconfig: /etc/kubeveil/kubeconfig\n"
	ranges := []byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n" +
		"networking: {podSubnet: 198.19.0.0/16, serviceSubnet: 198.18.128.0/20}\n")
	var texts []string
	for _, translated := range []bool{false, true} {
		patch, err := serversPatch(base, first, second, translated)
		errtest.Must(t, err)
		var object corev1.ConfigMap
		errtest.Must(t, yaml.Unmarshal(patch, &object))
		texts = append(texts, object.Data["veild.yaml"])
	}

	for i, text := range texts {
		got, err := config.Parse("node-1", []byte(text), ranges)
		errtest.Must(t, err)
		if len(got.Services.APIServers) != 2 || len(got.Services.APIFrontends) != i ||
			got.Source.Kubeconfig == "" {
			t.Errorf("configuration %+v", got)
		}
	}
	if rest, has := strings.CutPrefix(texts[1], texts[0]); !has ||
		rest != "  apiFrontends: [\"198.18.0.3:6443\"]\n" {
		t.Errorf("the cases differ by %q", rest)
	}
	if _, err := serversPatch(base+"services: {}\n", first, second, true); err == nil {
		t.Error("a second part services is added")
	}
}

func TestAdded(t *testing.T) {
	got := added("198.19.0.2\nfd42:1::2\n", "198.19.0.2\n198.19.0.3\nfd42:1::3\nnot-an-address")
	if fmt.Sprint(got) != "[198.19.0.3 fd42:1::3]" {
		t.Errorf("added: %v", got)
	}
}
