package keeper

import (
	"os"
	"runtime"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// The leak check reads the process's mounts from the main thread, so no test may run on that
// thread.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }
