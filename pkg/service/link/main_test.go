package link

import (
	"os"
	"runtime"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// The main goroutine keeps the process's first thread, which cannot end: a test that unshares must
// not get it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// flowKey and flowEntry are key and value of the flow table: struct flow_key and struct flow of
// bpf/lib/service/flow.h.
type (
	flowKey   [40]byte
	flowEntry [32]byte
)
