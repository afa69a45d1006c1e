package frozen

import (
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/hack/deptest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/golden"
)

// TestSharedConstants compares the values of all exported constants of pkg/abi with a golden file:
// marks, groups, tables, ports, names of pins and nftables objects, and paths.
func TestSharedConstants(t *testing.T) {
	fset := token.NewFileSet()
	pkg, err := importer.ForCompiler(fset, "source", nil).Import(deptest.Module + "/pkg/abi")
	errtest.Must(t, err)

	var b strings.Builder
	for _, name := range pkg.Scope().Names() {
		c, ok := pkg.Scope().Lookup(name).(*types.Const)
		if ok && c.Exported() {
			fmt.Fprintf(&b, "%s = %s\n", name, c.Val().ExactString())
		}
	}
	golden.Check(t, "abi.txt", b.String())
}
