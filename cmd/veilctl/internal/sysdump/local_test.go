package sysdump

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/redact/redacttest"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// A local dump works without an API server and without a running veild, and has no secrets.
func TestLocalSysdumpNeedsNoAPIServer(t *testing.T) {
	dir := t.TempDir()
	logs := filepath.Join(dir, "kube-system_veild-a_uid", "veild")
	errtest.Must(t, os.MkdirAll(logs, 0o755))
	filetest.Write(t, filepath.Join(logs, "0.log"), []byte(redacttest.Text()+
		"\nveild starts\n"), 0o600)
	filetest.Write(t, filepath.Join(dir, "veild.yaml"), []byte("mtu: 1400\n# "+
		redacttest.Text()+"\n"), 0o600)
	n := localNode{socket: filepath.Join(dir, "no.sock"),
		configs: []string{filepath.Join(dir, "none"), filepath.Join(dir, "veild.y*")},
		logs:    filepath.Join(dir, "kube-system_veil*/*/*.log"),
		veilctl: func(_ context.Context, args ...string) ([]byte, error) {
			if args[0] == "status" {
				return []byte("veild does not answer\n"), errors.New("exit status 3")
			}
			if args[0] == "peers" {
				return nil, errors.New("exit status 3")
			}
			return []byte("this is " + strings.Join(args, " ") + "\n" + redacttest.Text()), nil
		}}

	file := filepath.Join(dir, "dump.tar.gz")
	errtest.Must(t, writeLocalDump(verb.Call{Ctx: t.Context(), Out: io.Discard,
		Progress: io.Discard}, n, file, "dump"))
	files := unpackDump(t, file)
	for name, want := range map[string]string{
		"status.txt": "does not answer", "status.json": "does not answer",
		"host.txt": "this is host", "policy-list.txt": "this is policy list",
		"veild.yaml": "mtu: 1400", "logs/kube-system_veild-a_uid-veild-0.log": "veild starts",
		"manifest.json": "peers.txt",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s does not hold %q:\n%s", name, want, files[name])
		}
	}
	for name, text := range files {
		redacttest.Check(t, name, text)
	}
}

func TestTailBeginsWithALine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	filetest.Write(t, file, []byte("one\ntwo\nthree\n"), 0o600)
	for size, want := range map[int64]string{100: "one\ntwo\nthree\n", 14: "one\ntwo\nthree\n",
		12: "two\nthree\n", 7: "three\n", 2: ""} {
		if got, err := tail(file, size); err != nil || string(got) != want {
			t.Errorf("the last %d bytes: %q, %v; want %q", size, got, err, want)
		}
	}
}
