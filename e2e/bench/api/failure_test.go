package api

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const patient = 30 * time.Second

// A server that writes to the log hangs while the log is stalled, and only then.
func TestAuditLogHangs(t *testing.T) {
	a, err := newAuditLog(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	w, err := os.OpenFile(a.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	event := bytes.Repeat([]byte("x"), 1<<20) // more than the pipe has room for
	write := func(limit time.Duration) error {
		_ = w.SetWriteDeadline(time.Now().Add(limit))
		_, err := w.Write(event)
		return err
	}

	for range 2 {
		if err := write(patient); err != nil {
			t.Errorf("write to a log that is read: %v", err)
		}
		if _, err := a.stall(); err != nil {
			t.Fatal(err)
		}
		if err := write(time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write to a log that is stalled: %v, want that it hangs", err)
		}
		if err := a.flow(); err != nil {
			t.Fatal(err)
		}
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
	if got := ratioOf([]int{200, 0}); got != 200 {
		t.Errorf("ratio %v, want 200", got)
	}
	if got := ratioOf([]int{80, 120}); got != 1.5 {
		t.Errorf("ratio %v, want 1.5", got)
	}
}

// What a slow host sends takes that much longer, and after it as before.
func TestDelay(t *testing.T) {
	nettest.NeedRoot(t)
	ns := nettest.NewNS(t)
	const by = 50 * time.Millisecond
	undo, err := delay(ns.Do, by)
	if err != nil {
		t.Fatal(err)
	}

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
		t.Errorf("a connect took %v, want at least %v", took, 2*by)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	if again, err := delay(ns.Do, by); err != nil {
		t.Errorf("delay again: %v", err)
	} else if err := again(); err != nil {
		t.Error(err)
	}
}

// Each case of the labs is in a table, whose rows have as many cells as its head.
func TestTablesOfLabs(t *testing.T) {
	s := &run{Run: &suite.Run{Result: &bench.Result{}, Labels: map[string]string{}}}
	for _, part := range []string{partFailure, partFailure6} {
		for _, f := range faults {
			for kind := range heldKinds() {
				s.Add(caseFailure(part, f, kind), "label", bench.Millisecond, 1, 2)
			}
			s.Add(caseFailure(part, f, client.KindWatch)+suffixMissed, "label", bench.Count, 0)
		}
	}
	for _, name := range []string{caseHang + suffixWorst, caseHangClosed, caseSpread,
		caseSpreadBefore, caseRestartClosed, caseRestartDone, caseRestartLost} {
		s.Add(name, "label", bench.Count, 1)
	}
	for _, trouble := range troubles {
		s.Add(caseWell(trouble), "label", bench.Count, 0)
	}
	if err := s.addProbed(probed{1, 2, 3}, probed{4, 5, 6}, client.Tally{}); err != nil {
		t.Fatal(err)
	}

	tables := s.tables()
	if len(tables) != 2 || len(tables[0].Rows) != len(faults)*(len(client.Kinds)+1) ||
		len(tables[1].Rows) != 7+len(troubles)+4 {
		t.Fatalf("%+v", tables)
	}
	for _, table := range tables {
		for _, row := range table.Rows {
			if len(row) != len(table.Head) {
				t.Errorf("%s: row %q", table.Title, row)
			}
		}
	}
}
