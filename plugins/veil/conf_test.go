package main

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
)

func TestConfigurationMistakes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change object
		// want are parts of the message: where, and what to write. If it is empty, the
		// configuration is accepted.
		want []string
	}{
		{"as veild writes it", nil, nil},
		{"keys that runtimes add", object{"args": object{"x": 1}, "runtimeConfig": object{},
			"capabilities": object{}, "cni.dev/attachments": nil, "cniVersions": []string{"1.1.0"}},
			nil},
		{"unknown key", object{"Mtu2": 1500}, []string{`"Mtu2"`, "mtu"}},
		{"no mtu", object{"mtu": nil}, []string{`"mtu" is missing`}},
		{"negative mtu", object{"mtu": -1}, []string{`"mtu" is -1`, "68 to 65535"}},
		{"mtu larger than a packet", object{"mtu": 65536}, []string{`"mtu" is 65536`}},
		{"mtu too small for IPv6", object{"mtu": 1279},
			[]string{"1279", "fd42:1:0:1::/64", "1280", "1340"}},
		{"no ipam", object{"ipam": nil}, []string{`"ipam" is missing`, `"host-local"`,
			abi.IPAMDir}},
		{"another ipam plugin", object{"ipam": object{"type": "dhcp"}},
			[]string{`"ipam.type" is "dhcp"`, `"host-local"`}},
		{"reservations on the disk by default",
			object{"ipam": object{"type": "host-local", "subnet": "198.18.1.0/24"}},
			[]string{`"ipam.dataDir"`, abi.IPAMDir}},
		{"relative dataDir", object{"ipam": object{"type": "host-local", "subnet": "198.18.1.0/24",
			"dataDir": "ipam"}}, []string{`"ipam.dataDir" is "ipam"`}},
		{"no range", object{"ipam": ipamOf()}, []string{`"ipam.ranges" is empty`}},
		{"subnet that is none", object{"ipam": ipamOf("198.18.1.0")},
			[]string{`subnet "198.18.1.0"`, "10.244.1.0/24"}},
		{"route of its own", object{"ipam": object{"type": "host-local", "subnet": "198.18.1.0/24",
			"dataDir": "/x", "routes": []any{object{"dst": "198.18.0.0/16"}}}},
			[]string{`"ipam.routes" has "198.18.0.0/16"`}},
		{"default route is said too", object{"ipam": object{"type": "host-local",
			"subnet": "198.18.1.0/24", "dataDir": "/x",
			"routes": []any{object{"dst": "0.0.0.0/0"}}}}, nil},
		{"another plugin's part", object{"type": "ptp"}, []string{`"type" is "ptp"`, `"veil"`}},
		{"two mistakes are told at once", object{"mtu": nil, "zzz": 1},
			[]string{`"mtu" is missing`, `"zzz"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			data := conf("1.1.0", tt.change)
			c, err := parse(data)
			if err == nil {
				err = c.validate(data)
			}

			if tt.want == nil {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}

			if err == nil {
				t.Fatal("accepted")
			}

			wantError(t, err, 7, append(tt.want, `network "kubeveil"`)...)
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("message has more than one line: %q", err)
			}
		})
	}
}

// The plugin records the ports that portmap opens.
func TestHostPortsOfConfiguration(t *testing.T) {
	asked := object{"portMappings": true}
	given := func(ports ...any) object { return object{"portMappings": ports} }

	for _, tt := range []struct {
		name   string
		change object
		want   []pod.HostPort
		err    string
	}{
		{"the configuration does not ask", object{"runtimeConfig": given(object{"hostPort": 80})}, nil, ""},
		{"no port", object{"capabilities": asked}, []pod.HostPort{}, ""},
		{"ports", object{"capabilities": asked, "runtimeConfig": given(
			object{"hostPort": 80, "containerPort": 8080, "protocol": "TCP"},
			object{"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "0.0.0.0"},
			object{"hostPort": 54, "containerPort": 5353, "protocol": "udp",
				"hostIP": "fd42:9::1"},
			object{"hostPort": 99, "containerPort": 99, "protocol": "sctp"})},
			[]pod.HostPort{{Port: 80, PodPort: 8080}, {Port: 53, PodPort: 5353, UDP: true},
				{Port: 54, PodPort: 5353, UDP: true, Addr: netip.MustParseAddr("fd42:9::1")}}, ""},
		{"number that is no port", object{"capabilities": asked, "runtimeConfig": given(
			object{"hostPort": 65536, "containerPort": 1, "protocol": "tcp"})}, nil,
			"from 1 to 65535"},
		{"address that is none", object{"capabilities": asked, "runtimeConfig": given(
			object{"hostPort": 1, "containerPort": 1, "protocol": "tcp", "hostIP": "x"})}, nil,
			"hostIP"},
		{"no list", object{"capabilities": asked, "runtimeConfig": object{"portMappings": 1}}, nil,
			"host ports"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parseValid(conf("1.1.0", tt.change))
			errtest.Must(t, err)
			got, err := c.hostPorts()
			if tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("%v, want an error with %q", err, tt.err)
			}
			if tt.err == "" && err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%#v, %v, want %#v", got, err, tt.want)
			}
		})
	}
}

func TestConfigurationThatIsNotJSON(t *testing.T) {
	for _, data := range []string{"", "{", "[]", `{"mtu": "1420"}`, `{"ipam": 1}`} {
		_, err := parse([]byte(data))
		wantError(t, err, 6, "read CNI configuration")
	}
}

// FuzzParse: nothing panics, and what is accepted can be attached: its prefixes parse and its MTU
// fits.
func FuzzParse(f *testing.F) {
	f.Add(conf("1.1.0", nil))
	f.Add(conf("0.3.1", object{"prevResult": object{},
		"cni.dev/valid-attachments": []any{object{"containerID": "x"}}}))
	f.Add([]byte(`{"ipam":{"ranges":[[{}]]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parse(data)
		if err != nil {
			return
		}

		_, _ = c.valid()
		if c.validate(data) != nil {
			return
		}
		prefixes, err := c.IPAM.prefixes()
		if err != nil || len(prefixes) == 0 {
			t.Fatalf("accepted without prefixes: %v", err)
		}

		for _, p := range prefixes {
			if p.Addr().Is6() && c.MTU < abi.MinPodMTU6 || c.MTU < pod.MinMTU4 || c.MTU > pod.MaxMTU {
				t.Errorf("accepted mtu %d for %s", c.MTU, p)
			}
		}

		if _, err := json.Marshal(c.IPAM); err != nil {
			t.Error(err)
		}
	})
}
