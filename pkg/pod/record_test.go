package pod

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

func good() Record {
	return Record{
		Network: "kubeveil", ContainerID: "c1", IfName: "eth0", Netns: "/run/netns/x",
		HostLink: HostLink("c1", "eth0"), Addrs: []netip.Addr{pod4, pod6}, MTU: 1420,
	}
}

func TestHostLink(t *testing.T) {
	seen := make(map[string]bool)
	for _, id := range [][2]string{{"c1", "eth0"}, {"c1", "eth1"}, {"c2", "eth0"}, {"c1e", "th0"}} {
		name := HostLink(id[0], id[1])
		if len(name) != 15 || !ours(name) {
			t.Errorf("HostLink(%v) = %q, want 15 bytes of our form", id, name)
		}
		if name != HostLink(id[0], id[1]) || seen[name] {
			t.Errorf("HostLink(%v) = %q is not stable or not unique", id, name)
		}
		seen[name] = true
	}
	r := good()
	if r.HostMAC().String() == r.PodMAC().String() || r.HostMAC()[0]&3 != 2 ||
		r.PodMAC()[0]&3 != 2 {
		t.Errorf("MACs %s and %s: want two, unicast and locally administered", r.HostMAC(),
			r.PodMAC())
	}
}

func TestRecordRefusals(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Record)
		want   string
	}{
		{"no network", func(r *Record) { r.Network = "" }, "network"},
		{"link of another container", func(r *Record) { r.ContainerID = "c2" }, "hostLink"},
		{"no address", func(r *Record) { r.Addrs = nil }, "no address"},
		{"two IPv4 addresses", func(r *Record) { r.Addrs = []netip.Addr{pod4, pod4.Next()} },
			"at most one"},
		{"link-local address", func(r *Record) {
			r.Addrs = []netip.Addr{netip.MustParseAddr("fe80::2")}
		}, "cannot belong to a pod"},
		{"mapped address", func(r *Record) {
			r.Addrs = []netip.Addr{netip.MustParseAddr("::ffff:198.18.1.5")}
		}, "cannot belong to a pod"},
		{"IPv6 below 1280", func(r *Record) { r.MTU = 1279 }, "RFC 8200"},
		{"no MTU", func(r *Record) { r.MTU = 0 }, "mtu 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := good()
			tt.change(&r)
			if err := r.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Validate = %v, want something with %q", err, tt.want)
			}
		})
	}

	if err := good().Validate(); err != nil {
		t.Errorf("good record: %v", err)
	}
}

func TestListGoesPastACorruptRecord(t *testing.T) {
	p := Paths{PodDir: t.TempDir()}
	errtest.Must(t, p.write(good()))
	corrupt := abi.PodLinkPrefix + "00000000000.json"
	for name, data := range map[string]string{corrupt: "{", "README.json": "x", ".lock-00": ""} {
		filetest.Write(t, filepath.Join(p.PodDir, name), []byte(data), 0o600)
	}
	records, err := p.List()
	if len(records) != 1 || !reflect.DeepEqual(records[0], good()) {
		t.Errorf("List = %+v, want the good one", records)
	}
	if err == nil || !strings.Contains(err.Error(), corrupt) {
		t.Errorf("List error = %v, want one that names %s", err, corrupt)
	}
	if records, err := (Paths{PodDir: filepath.Join(p.PodDir, "none")}).List(); err != nil ||
		records != nil {
		t.Errorf("List of no directory = %v, %v", records, err)
	}
}

// A Cache reads a record again if its file may have changed, and no other record.
func TestCacheReadsRecordsThatChanged(t *testing.T) {
	p := Paths{PodDir: t.TempDir()}
	var c Cache
	list := func(when string, want ...Record) {
		t.Helper()
		records, err := c.List(p)
		sort := func(a, b Record) int { return strings.Compare(a.HostLink, b.HostLink) }
		if slices.SortFunc(want, sort); err != nil || !reflect.DeepEqual(records, want) {
			t.Errorf("%s: %+v, %v, want %+v", when, records, err, want)
		}
	}
	a, b := good(), good()
	b.ContainerID, b.HostLink = "c2", HostLink("c2", "eth0")
	errtest.Must(t, p.write(a), p.write(b))
	list("two pods", a, b)
	a.MTU = 1400
	errtest.Must(t, p.write(a))
	list("one was replaced a moment later", a, b)

	rest := func(r Record, text string) {
		if text != "" {
			filetest.Write(t, p.record(r.HostLink), []byte(text), 0o600)
		}
		long := time.Now().Add(-time.Hour).Truncate(time.Hour)
		errtest.Must(t, os.Chtimes(p.record(r.HostLink), long, long))
	}
	data, err := os.ReadFile(p.record(a.HostLink))
	errtest.Must(t, err)
	rest(a, "")
	list("at rest", a, b)
	rest(a, strings.Repeat("x", len(data)))
	list("not read, as its state is the same", a, b)
	a.MTU = 1390
	errtest.Must(t, p.write(a))
	list("replaced after a rest", a, b)
	errtest.Must(t, os.Remove(p.record(b.HostLink)))
	list("one is gone", a)
}

// A record of another version is usable, and keeps the fields of that version after this version
// wrote it.
func TestRecordKeepsFieldsOfOtherVersions(t *testing.T) {
	p := Paths{PodDir: t.TempDir()}
	own, err := json.Marshal(good())
	errtest.Must(t, err)

	const other = `"policy":{"default":"deny"},"queues":[1, 2]`
	newer := strings.Replace(string(own), `{`, `{`+other+`,`, 1)
	path := filepath.Join(p.PodDir, good().HostLink+recordSuffix)
	filetest.Write(t, path, []byte(newer), 0o600)
	errtest.Must(t, p.NoteTook(good().HostLink, time.Second))
	text := filetest.Read(t, path)

	var fields map[string]any
	errtest.Must(t, json.Unmarshal(text, &fields))

	policy, _ := fields["policy"].(map[string]any)
	if policy["default"] != "deny" || !reflect.DeepEqual(fields["queues"], []any{1.0, 2.0}) ||
		fields["took"] != float64(time.Second) || fields["mtu"] != float64(good().MTU) {
		t.Errorf("written back: %s", text)
	}

	if _, err := ParseRecord(text); err != nil {
		t.Errorf("read again: %v", err)
	}
}

// FuzzParseRecord checks that an accepted record is valid and is written back unchanged.
func FuzzParseRecord(f *testing.F) {
	data, err := json.Marshal(good())
	errtest.Must(f, err)
	f.Add(data)
	f.Add([]byte(`{}`))
	f.Add([]byte(strings.Replace(string(data), "{", `{"new":{"a":[1, "<\u003c"]},"MTU":1500,`, 1)))
	f.Add([]byte(`{"addrs":["fe80::1%eth0"],"mtu":1e9}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRecord(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(r)
		errtest.Must(t, err)
		if back, err := ParseRecord(again); err != nil || !reflect.DeepEqual(back, r) {
			t.Errorf("%s came back as %+v, %v", again, back, err)
		}
	})
}
