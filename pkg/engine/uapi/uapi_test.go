package uapi

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestParse(t *testing.T) {
	key := strings.Repeat("0a", 32)
	for _, tc := range []struct {
		name, in string
		code     int64
		want     string
	}{
		{"empty", "", 0, ""},
		{"device", "private_key=" + key + "\nlisten_port=5\nfwmark=0x10\nreplace_peers=true\n", 0,
			""},
		{"peer", "public_key=" + key +
			"\nendpoint=[fd42::1]:7\npersistent_keepalive_interval=25\nallowed_ip=-10.0.0.0/8\n", 0,
			""},
		{"no equals sign", "listen_port\n", -int64(unix.EPROTO), "equals"},
		{"short key", "private_key=00\n", -int64(unix.EINVAL), "private_key"},
		{"key of another alphabet", "private_key=" + strings.Repeat("z", 64) + "\n",
			-int64(unix.EINVAL), "private_key"},
		{"port", "listen_port=65536\n", -int64(unix.EINVAL), "listen_port"},
		{"unknown device key", "colour=red\n", -int64(unix.EINVAL), "colour"},
		{"unknown peer key", "public_key=" + key + "\ncolour=red\n", -int64(unix.EINVAL), "colour"},
		{"prefix", "public_key=" + key + "\nallowed_ip=10.0.0.0\n", -int64(unix.EINVAL),
			"allowed_ip"},
		{"endpoint", "public_key=" + key + "\nendpoint=host:7\n", -int64(unix.EINVAL), "endpoint"},
		{"remove", "public_key=" + key + "\nremove=false\n", -int64(unix.EINVAL), "remove"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse(strings.NewReader(tc.in))
			var e *Error
			if tc.code == 0 && err == nil {
				return
			}

			if !errors.As(err, &e) || e.ErrorCode() != tc.code ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want code %d and %q", err, tc.code, tc.want)
			}
		})
	}
}

func TestErrorsHoldNoKey(t *testing.T) {
	secret := strings.Repeat("c0ffee", 11)[:64]
	for _, in := range []string{"private_key=" + secret[:63] + "\n", secret + "=1\n",
		"private_key:" + secret + "\n",
		"listen_port=" + secret + "\n", "public_key=" + secret + "\npreshared_key=" + secret +
			"00\n", "public_key=" + secret + "\nendpoint=" + secret + "\n"} {
		if _, err := Parse(strings.NewReader(in)); err == nil ||
			strings.Contains(err.Error(), "c0ffee") {
			t.Errorf("error %v", err)
		}
	}
}

// Parse accepts the output of Write, without the lines that are not configuration.
func TestAnswerIsASet(t *testing.T) {
	s := DeviceState{PrivateKey: Key{1}, ListenPort: 5, Mark: 7,
		Peers: []PeerState{{Public: Key{2}, Preshared: Key{3},
			Endpoint:      Endpoint{netip.MustParseAddrPort("[fe80::1]:9"), 4},
			LastHandshake: time.Unix(5, 6), Sent: 1, Received: 2,
			Keepalive: 25 * time.Second, Allowed: []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/8")}}}}
	var b bytes.Buffer
	errtest.Must(t, s.Write(&b))

	var set strings.Builder
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "last_") && !strings.Contains(line, "_bytes=") {
			set.WriteString(line)
		}
	}

	got, err := Parse(strings.NewReader(set.String()))
	errtest.Must(t, err)

	p := got.Peers[0]
	if *got.PrivateKey != s.PrivateKey || *got.ListenPort != 5 || *got.Mark != 7 ||
		p.Public != (Key{2}) || *p.Preshared != (Key{3}) ||
		*p.Endpoint != s.Peers[0].Endpoint || *p.Keepalive != 25*time.Second ||
		fmt.Sprint(p.Allowed) != "[{false false 10.0.0.0/8}]" {
		t.Errorf("%+v of\n%s", got, &b)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("private_key=00\nlisten_port=1\n")
	f.Add("public_key=" + strings.Repeat("0a", 32) + "\nendpoint=1.2.3.4:5\nallowed_ip=::/0\n")
	f.Fuzz(func(t *testing.T, in string) {
		s, err := Parse(strings.NewReader(in))
		if (s == nil) == (err == nil) {
			t.Errorf("%v, %v", s, err)
		}
	})
}
