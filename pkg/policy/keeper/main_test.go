package keeper

import (
	"os"
	"runtime"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// The main thread shows the process's mounts to the leak check: no test may take it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }
