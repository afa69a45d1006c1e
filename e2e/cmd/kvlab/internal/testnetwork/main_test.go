package testnetwork

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestArguments(t *testing.T) {
	for name, tt := range map[string]struct{ args, want string }{
		"the usual":    {"", ""},
		"on a cluster": {"--kubeconfig c --platform tdx --core --run webhook", ""},
		"a mistyped platform": {"--kubeconfig c --platform sevsnp",
			"--platform: nodes cannot be \"sevsnp\": write one of emulated, vm, sev-snp"},
		"both sizes":        {"--core --full", "choose one"},
		"a case of no name": {"--run webhok", "--run webhok: no case has such a name"},
	} {
		t.Run(name, func(t *testing.T) {
			var a arguments
			err := commandline.ParseAll(a.flags(), "", strings.Fields(tt.args), io.Discard)
			if err == nil {
				err = a.check()
			}
			if (err == nil) != (tt.want == "") ||
				err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
