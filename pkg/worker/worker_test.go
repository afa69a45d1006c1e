package worker

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestSocketsForbidFragments(t *testing.T) {
	bind := conn.NewStdNetBind()
	_, port, err := bind.Open(0)
	errtest.Must(t, err)
	defer bind.Close()
	seen := map[int]int{}
	entries, err := os.ReadDir("/proc/self/fd")
	errtest.Must(t, err)

	for _, e := range entries {
		fd, _ := strconv.Atoi(e.Name())
		addr, err := unix.Getsockname(fd)
		if err != nil {
			continue
		}
		switch a := addr.(type) {
		case *unix.SockaddrInet4:
			if a.Port == int(port) {
				seen[4], err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER)
			}
		case *unix.SockaddrInet6:
			if a.Port == int(port) {
				seen[6], err = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER)
			}
		}
		errtest.Must(t, err)
	}

	if seen[4] != unix.IP_PMTUDISC_PROBE || seen[6] != unix.IPV6_PMTUDISC_PROBE {
		t.Errorf("path mtu discovery of the sockets by family: %v, want %d", seen,
			unix.IP_PMTUDISC_PROBE)
	}
}

func TestStrangersHaveAnEndpointAndNoHandshake(t *testing.T) {
	get := fmt.Sprintf(`public_key=%064x
endpoint=198.18.0.1:1
last_handshake_time_sec=0
public_key=%064x
last_handshake_time_sec=0
public_key=%064x
endpoint=198.18.0.3:1
last_handshake_time_sec=17
`, 1, 2, 3)
	got := strangers([]byte(get))
	if len(got) != 1 || got[device.NoisePublicKey{31: 1}] != "198.18.0.1:1" {
		t.Errorf("strangers %v, want the first alone", got)
	}
}

func FuzzStrangers(f *testing.F) {
	f.Add([]byte("public_key=00\nendpoint=198.18.0.1:1\nlast_handshake_time_sec=0\n"))
	f.Fuzz(func(_ *testing.T, in []byte) { strangers(in) })
}
