package link

import (
	"os"
	"runtime"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// The main goroutine keeps the process's first thread, which cannot end: a test that unshares must
// not get it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// flowKey and flowEntry are key and value of the flow tables: struct flow_key and struct flow of
// bpf/lib/service/flow.h.
type (
	flowKey   [40]byte
	flowEntry [36]byte
)

// flowMaps are the flow tables.
var flowMaps = []string{bpfmaps.MapTCP, bpfmaps.MapOpening, bpfmaps.MapUDP}

// eachFlow calls fn with every entry of the flow tables. An established connection may have an
// entry in two of them.
func (l *linked) eachFlow(t *testing.T, fn func(table string, key flowKey, f flowEntry)) {
	t.Helper()
	for _, table := range flowMaps {
		err := bpfmaps.Each(l.Table, table, func(key flowKey, f flowEntry) bool {
			fn(table, key, f)
			return true
		})
		errtest.Must(t, err)
	}
}
