package guard

import (
	"log/slog"
	"os"
	"runtime"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// The main goroutine keeps the process's first thread, which cannot end: a test
// that unshares must not get it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// lab holds the settings of all kernel tests: pods in 198.18/16 and fd42:1::/48, services in
// 198.19.240/20 and fd42:5::/112, nodes in 198.19.0/24 and fd42:9::/64.
func lab() Settings {
	return Settings{
		Ranges:    prefixes("198.18.0.0/16", "198.19.240.0/20", "fd42:1::/48", "fd42:5::/112"),
		NodeAddrs: addrs("198.19.0.1", "198.19.0.2", "fd42:9::1", "fd42:9::2"),
	}
}

var prefixes, addrs = nettest.Prefixes, nettest.Addrs
