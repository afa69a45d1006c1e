package handover

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// The process that serves offers its queues to a successor of its own version, and goes on until
// the successor reports that it is ready.
func TestDeskOffersQueues(t *testing.T) {
	queue, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	errtest.Must(t, err)
	defer unix.Close(queue)
	path := Path(t.TempDir(), "veil0")
	d, err := OpenDesk(path, []int{queue})
	errtest.Must(t, err)
	dial := func(hello string) *net.UnixConn {
		t.Helper()
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		errtest.Must(t, err)
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		errtest.Must(t, Say(c, hello))
		return c
	}

	for _, hello := range []string{"hello 1 1", "hello 2 2", "hello 3", "taken"} {
		if text, err := Hear(dial(hello)); err != nil || !strings.HasPrefix(text, Refused) {
			t.Errorf("%q: it says %q, %v; want that it refuses", hello, text, err)
		}
	}

	c := dial(Hello)
	fds, err := Receive(c, ParseQueues)
	if err != nil || len(fds) != 1 {
		t.Fatalf("queues %v, %v", fds, err)
	}
	CloseFDs(fds)
	errtest.Must(t, Say(c, "taken"))
	if text, err := Hear(c); err != nil || !strings.HasPrefix(text, Refused) {
		t.Errorf("without a word that it is ready: it says %q, %v", text, err)
	}

	c = dial(Hello)
	if fds, err = Receive(c, ParseQueues); err != nil {
		t.Fatal(err)
	}
	CloseFDs(fds)
	select {
	case <-d.Asked:
		t.Fatal("the device is asked for before the successor is ready")
	default:
	}
	errtest.Must(t, Say(c, Ready))
	(<-d.Asked).Close()

	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	errtest.Must(t, err)
	defer unix.Close(ends[1])
	file := os.NewFile(uintptr(ends[0]), "socket")
	pair, err := net.FileConn(file)
	file.Close()
	errtest.Must(t, err)
	defer pair.Close()
	live := pair.(*net.UnixConn)
	errtest.Check(t, d.offer(live))
	d.Close()
	if err := d.offer(live); err == nil {
		t.Error("queues are offered that may be closed")
	}
}

// A message of a successor, or of the process that serves, is taken whole or refused.
func FuzzParcel(f *testing.F) {
	f.Add("state true 2 17", 5)
	f.Add("state false 8 1", 10)
	f.Add("state true 1 99999999999999999999", 4)
	f.Add("queues 4", 4)
	f.Add("refused busy", 0)
	f.Fuzz(func(t *testing.T, text string, n int) {
		if n < 0 || n > 300 {
			return
		}
		fds := make([]int, n)
		for i := range fds {
			fds[i] = i + 1000
		}
		if p, err := ParseParcel(text, fds); err == nil {
			if got := p.FDs(); len(got) != n || p.Image != 1000 || p.Since < 0 {
				t.Errorf("%q with %d descriptors: %+v", text, n, p)
			}
		}
		if q, err := ParseQueues(text, fds); err == nil && (len(q) != n || n == 0) {
			t.Errorf("%q with %d descriptors: %v", text, n, q)
		}
	})
}
