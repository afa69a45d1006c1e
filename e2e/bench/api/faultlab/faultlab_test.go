package faultlab

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// A write to the audit log hangs only while the log is stalled.
func TestAuditLogHangs(t *testing.T) {
	a, err := newAuditLog(t.TempDir())
	errtest.Must(t, err)
	defer a.close()
	w, err := os.OpenFile(a.path, os.O_APPEND|os.O_WRONLY, 0)
	errtest.Must(t, err)
	defer w.Close()
	event := bytes.Repeat([]byte("x"), 1<<20) // more than the pipe can hold
	write := func(limit time.Duration) error {
		_ = w.SetWriteDeadline(time.Now().Add(limit))
		_, err := w.Write(event)
		return err
	}

	for range 2 {
		if err := write(patient); err != nil {
			t.Errorf("write to a log that is being read: %v", err)
		}
		errtest.Must(t, errtest.Of(a.stall()))
		if err := write(time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write to a stalled log: %v, want a timeout", err)
		}
		errtest.Must(t, a.flow())
	}
}

func TestConnectionsByPeer(t *testing.T) {
	got, err := parsePeers("0 0 198.18.1.2:4000 198.18.0.2:6443\n" +
		"0 5 [::ffff:198.18.1.2]:4001   [::ffff:198.18.0.2]:6443 \n0 0 [fd42::1]:1 [fd42::2]:2\n")
	if err != nil || got[netip.MustParseAddrPort("198.18.0.2:6443")] != 2 ||
		got[netip.MustParseAddrPort("[fd42::2]:2")] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"0 0 a", "0 0 198.18.1.2:4000 nowhere"} {
		if _, err := parsePeers(bad); err == nil {
			t.Errorf("%q: want an error", bad)
		}
	}
}

// delay delays packets by the given time. undo removes the delay.
func TestDelay(t *testing.T) {
	nettest.NeedRoot(t)
	ns := nettest.NewNS(t)
	const by = 50 * time.Millisecond
	undo, err := delay(ns.Do, by)
	errtest.Must(t, err)

	var took time.Duration
	ns.Run(t, func() error {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		begin := time.Now()
		c, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			return err
		}
		took = time.Since(begin)
		return c.Close()
	})
	if took < 2*by { // the SYN and its answer
		t.Errorf("connect took %v, want at least %v", took, 2*by)
	}
	errtest.Check(t, undo())
	if again, err := delay(ns.Do, by); err != nil {
		t.Errorf("delay again: %v", err)
	} else if err := again(); err != nil {
		t.Error(err)
	}
}

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

const patient = 30 * time.Second
