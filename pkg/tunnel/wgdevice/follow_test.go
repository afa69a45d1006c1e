package wgdevice

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// A kept reading takes what veil-wg reports as changed. If the answer is not whole, the device is
// read again.
func TestChangesUpdateAReading(t *testing.T) {
	one := wgkey.Public{1}
	key := "01" + strings.Repeat("00", 31)
	before := tunnel.PeerState{PublicKey: one, Endpoint: netip.MustParseAddrPort("198.18.0.1:1"),
		Received: 5}
	after := before
	after.Endpoint, after.Sent = netip.MustParseAddrPort("198.18.0.2:1"), 7
	after.LastHandshake = time.Unix(8, 9)

	for name, tt := range map[string]struct {
		answer string
		ok     bool
		want   tunnel.PeerState
	}{
		"a change": {"revision=r2\npublic_key=" + key + "\npreshared_key=00\nendpoint=198.18.0.2:1\n" +
			"last_handshake_time_sec=8\nlast_handshake_time_nsec=9\ntx_bytes=7\nrx_bytes=5\n" +
			"errno=0\n\n", true, after},
		"nothing":             {"revision=r2\nerrno=0\n\n", true, before},
		"another process":     {"errno=-116\n\n", false, before},
		"an older veil-wg":    {"", false, before},
		"an unknown peer":     {"revision=r2\npublic_key=ff\nerrno=0\n\n", false, before},
		"no number":           {"revision=r2\ntx_bytes=many\nerrno=0\n\n", false, before},
		"cut off":             {"revision=r2\n", false, before},
		"no address and port": {"revision=r2\nendpoint=198.18.0.2\nerrno=0\n\n", false, before},
	} {
		t.Run(name, func(t *testing.T) {
			path, asked := answering(t, tt.answer)
			f := &followed{}
			f.keep(tunnel.DeviceState{ListenPort: 4, Peers: []tunnel.PeerState{{}, before}}, "r1")
			st := tunnel.DeviceState{Name: "veil0"}
			if ok := f.update(path, &st); ok != tt.ok {
				t.Fatalf("updated: %t, want %t", ok, tt.ok)
			}
			if line := <-asked; line != "changed=r1\n" {
				t.Errorf("asked %q", line)
			}
			if !tt.ok {
				return
			}
			if st.Name != "veil0" || !st.Served || st.ListenPort != 4 || f.revision != "r2" ||
				len(st.Peers) != 2 || !st.Peers[1].LastHandshake.Equal(tt.want.LastHandshake) ||
				st.Peers[1].Endpoint != tt.want.Endpoint || st.Peers[1].Sent != tt.want.Sent ||
				st.Peers[1].Received != tt.want.Received {
				t.Errorf("read %+v, revision %s, want %+v", st, f.revision, tt.want)
			}
		})
	}
}

// A veil-wg that does not report changes is not asked with each reading, because it counts requests
// that it does not know.
func TestOlderWorkerIsNotAskedForChanges(t *testing.T) {
	var f followed
	older, _ := answering(t, "")
	newer, asked := answering(t, "revision=r1\nerrno=0\n\n")
	for _, socket := range []string{older, newer} {
		if r := f.begin(socket); r != "" {
			t.Errorf("revision %s", r)
		}
	}
	if len(asked) > 0 {
		t.Error("asked again at once")
	}

	// A veil-wg that does not run yet is asked again at once.
	f.again = time.Now()
	if r := f.begin(filepath.Join(t.TempDir(), "none")); r != "" {
		t.Errorf("revision %s of no device", r)
	}
	if r := f.begin(newer); r != "r1" {
		t.Errorf("asked later: revision %q, want r1", r)
	}
}
