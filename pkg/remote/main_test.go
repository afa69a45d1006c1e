package remote

import (
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }
