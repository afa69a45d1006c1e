package sites_test

import (
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m)) }
