package drop

import (
	"fmt"
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(floodEnv); text != "" {
		if err := runFlood(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(nettest.Run(m))
}
