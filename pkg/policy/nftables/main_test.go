package nftables_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// /proc/self shows the main thread, so no test may move that thread to another namespace.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }
