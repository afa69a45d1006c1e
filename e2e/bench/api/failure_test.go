package api

import (
	"testing"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

func TestRatioOfConnections(t *testing.T) {
	if got := ratioOf([]int{200, 0}); got != 200 {
		t.Errorf("ratio %v, want 200", got)
	}
	if got := ratioOf([]int{80, 120}); got != 1.5 {
		t.Errorf("ratio %v, want 1.5", got)
	}
}

// Each case of the parts with a lab is in a table. All rows have as many cells as the table's head.
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
