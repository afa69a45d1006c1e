package abi_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestConflistGolden(t *testing.T) {
	got, err := abi.Conflist(abi.ConflistParams{
		MTU: 1420, PodPrefixes: prefixes("fd42:244:0:1::/64", "10.244.1.0/24"), Portmap: true,
		Bandwidth: true,
	})
	errtest.Must(t, err)

	const want = `{
  "cniVersion": "1.0.0",
  "cniVersions": [
    "0.3.1",
    "0.4.0",
    "1.0.0",
    "1.1.0"
  ],
  "name": "kubeveil",
  "plugins": [
    {
      "type": "veil",
      "mtu": 1420,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/kubeveil/ipam",
        "ranges": [
          [
            {
              "subnet": "10.244.1.0/24"
            }
          ],
          [
            {
              "subnet": "fd42:244:0:1::/64"
            }
          ]
        ]
      },
      "capabilities": {
        "portMappings": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      },
      "snat": true
    },
    {
      "type": "bandwidth",
      "capabilities": {
        "bandwidth": true
      }
    }
  ]
}
`

	if string(got) != want {
		t.Errorf("got\n%s", got)
	}
	list, err := libcni.NetworkConfFromBytes(got)
	if err != nil || list.Name != abi.NetworkName || len(list.Plugins) != 3 {
		t.Fatalf("libcni reads %+v, %v", list, err)
	}
	var conf abi.NetConf
	if err := json.Unmarshal(list.Plugins[0].Bytes, &conf); err != nil || conf.MTU != 1420 ||
		len(conf.IPAM.Ranges) != 2 {
		t.Errorf("the plugin reads %+v, %v", conf, err)
	}
}

func TestConflistRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		params abi.ConflistParams
		want   string
	}{
		"no prefix": {abi.ConflistParams{MTU: 1420}, "no pod prefix"},
		"small MTU": {abi.ConflistParams{MTU: 500,
			PodPrefixes: prefixes("10.244.1.0/24")}, "below 576"},
		"small MTU for IPv6": {abi.ConflistParams{MTU: 1279,
			PodPrefixes: prefixes("10.244.1.0/24", "fd42::/64")}, "below 1280"},
		"prefix without a room": {abi.ConflistParams{MTU: 1420,
			PodPrefixes: prefixes("10.244.1.0/31")}, "10.244.1.0/31"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := abi.Conflist(c.params); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestMarker(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "ready")
	if _, err := abi.ReadMarker(path); !errors.Is(err, abi.ErrNotReady) {
		t.Errorf("no marker: %v, want ErrNotReady", err)
	}
	boot, err := abi.BootID()
	errtest.Must(t, err)
	want := abi.Marker{BootID: boot, Families: cluster.Families{V4: true},
		Devices: []string{"veil0"}, Written: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	errtest.Must(t, abi.WriteMarker(path, want))

	got, err := abi.ReadMarker(path)
	if err != nil || got.Families != want.Families || got.Devices[0] != "veil0" ||
		!got.Written.Equal(want.Written) {
		t.Errorf("got %+v, %v", got, err)
	}

	want.BootID = "another"
	errtest.Must(t, abi.WriteMarker(path, want))
	if _, err := abi.ReadMarker(path); !errors.Is(err, abi.ErrNotReady) ||
		!strings.Contains(err.Error(), "another") {
		t.Errorf("another boot's marker: %v, want ErrNotReady", err)
	}

	for _, text := range []string{"", "{", "{}", `{"bootID":"` + boot + `"} x`, `[]`} {
		filetest.Write(t, path, []byte(text), 0o644)
		if _, err := abi.ReadMarker(path); !errors.Is(err, abi.ErrNotReady) {
			t.Errorf("%q: %v, want ErrNotReady", text, err)
		}
	}
}
