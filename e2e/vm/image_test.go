package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

// aptCache replaces apt-cache, as on a machine whose package archives have two releases of Linux.
const aptCache = `#!/bin/sh
case $1 in
policy) printf 'linux-image-cloud-amd64:\n  Candidate: 6.1.192-2\n' ;;
pkgnames) printf 'linux-image-6.12-cloud-amd64\nlinux-image-6.12.9-cloud-amd64-dbg\n' ;;
esac
`

// An unknown release of Linux is refused before anything is made. The error lists the available
// releases.
func TestImageRefusesUnknownKernel(t *testing.T) {
	bin := t.TempDir()
	filetest.Write(t, filepath.Join(bin, "apt-cache"), []byte(aptCache), 0o755)
	const have = "they have linux-image-cloud-amd64 linux-image-6.12-cloud-amd64"
	for name, tt := range map[string]struct{ kernel, want string }{
		"not in the archives": {"6.99", have},
		"only debug symbols":  {"6.12.9-cloud-amd64-dbg", "write a release of Linux"},
		"no release":          {"new", "KERNEL=new: write a release of Linux, such as 6.12"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "bash", "../../hack/vm/image.sh")
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"),
				KernelEnv+"="+tt.kernel)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), tt.want) {
				t.Errorf("%v, %q: want an error with %q", err, out, tt.want)
			}
		})
	}
}

// If the disk of another release is missing, the error names the disk and the command that makes
// it.
func TestNeedNamesKernelOfDisk(t *testing.T) {
	c := &Cluster{root: t.TempDir(), opts: ClusterConfig{Kernel: "6.12"}}
	err := c.need()
	want := "out/vm/linux-6.12/root.ext4 is missing: run `KUBEVEIL_VM_KERNEL=6.12 hack/vm/image.sh`"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v: want %q", err, want)
	}
}
