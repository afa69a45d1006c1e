package kernel

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/kubeveil/kubeveil/e2e/vm/vmtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// armReleaseEnv names the folder of the release whose programs TestArm64 runs. Empty means that
// the test builds the images.
const armReleaseEnv = "KUBEVEIL_ARM64_RELEASE"

// armLabs are the tests that the machine runs, first without WireGuard in its kernel and then with
// it. The first is the control: its network does not encrypt, and the oracle sees that.
const armLabs = "TestOracleSeesTheClearNetwork|TestSnapshotSourceNeedsNoAPIServer"

// armScript is the file /work/run of the machine. Its argument is the time now.
const armScript = `date --set=@%d
uname -srm
export KUBEVEIL_LAB_NO_BUILD=1
status=0
echo 'install wireguard /bin/false' >/etc/modprobe.d/no-wireguard.conf
./tests -test.v -test.parallel 1 -test.timeout 20m -test.run '^(` + armLabs + `)$' || status=1
echo "machine: modules of WireGuard without it: $(grep -c ^wireguard /proc/modules)"
rm /etc/modprobe.d/no-wireguard.conf
./tests -test.v -test.parallel 1 -test.timeout 20m -test.run '^(` + armLabs + `)$' || status=1
echo "machine: modules of WireGuard with it: $(grep -c ^wireguard /proc/modules)"
dmesg | tail -n 5
exit $status
`

// Two pods of two nodes talk on Debian's kernel for arm64, through tunnels of veil-wg and then of
// the kernel. The programs come from the images for arm64. Nodes are namespaces of one emulated
// machine, which has no network card and no disk.
func TestArm64(t *testing.T) {
	vmtest.Need(t)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	work := filepath.Join(t.TempDir(), "work")
	bin := filepath.Join(work, "out/bin")
	errtest.Must(t, os.MkdirAll(bin, 0o755))
	for _, archive := range armArchives(ctx, t) {
		unpackPrograms(t, archive, bin)
	}

	t.Setenv("GOARCH", "arm64")
	t.Setenv("CGO_ENABLED", "0")
	// The reference network has a plugin that the images lack.
	command(ctx, t, "", "go", "build", "-o", bin+"/",
		"github.com/containernetworking/plugins/plugins/main/ptp")
	tests := vmtest.Build(ctx, t, "../node/network")
	errtest.Must(t, os.Rename(tests, filepath.Join(work, "tests")))
	filetest.Write(t, filepath.Join(work, "go.mod"), nil, 0o644)
	filetest.Write(t, filepath.Join(work, "run"), fmt.Appendf(nil, armScript, time.Now().Unix()),
		0o755)

	out := runArm64(ctx, t, filepath.Dir(work))
	for _, want := range []string{"aarch64", "machine: modules of WireGuard without it: 0\n",
		"machine: modules of WireGuard with it: 1\n", "machine: status 0\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the machine did not print %q", want)
		}
	}
	for test := range strings.SplitSeq(armLabs, "|") {
		if n := strings.Count(out, "\n--- PASS: "+test+" "); n != 2 {
			t.Errorf("%s passed %d times, want 2", test, n)
		}
	}
}

// armArchives returns the archives of the images with the programs: of the release, or built.
func armArchives(ctx context.Context, t *testing.T) (archives []string) {
	t.Helper()
	release := os.Getenv(armReleaseEnv)
	for _, image := range []string{"kubeveil", "kubeveil-tools"} {
		archive := filepath.Join(release, image+".tar")
		if release == "" {
			archive = filepath.Join(t.TempDir(), image+".tar")
			command(ctx, t, "../..", "go", "run", "./hack/image", "--image", image, "--arch",
				"arm64", "--out", archive)
		}
		archives = append(archives, archive)
	}
	return archives
}

func command(ctx context.Context, t *testing.T, dir, name string, args ...string) {
	t.Helper()
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", c, err, out)
	}
}

// unpackPrograms writes the programs and plugins of an archive's image for arm64 to the folder dir.
func unpackPrograms(t *testing.T, archive, dir string) {
	t.Helper()
	at := t.TempDir()
	command(t.Context(), t, "", "tar", "-C", at, "-xf", archive)
	top, err := layout.ImageIndexFromPath(at)
	errtest.Must(t, err)
	image := imageForArm64(t, top)
	if image == nil {
		t.Fatalf("%s has no image for arm64", archive)
	}

	files := mutate.Extract(image)
	defer files.Close()
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		errtest.Must(t, err)
		if h.Typeflag == tar.TypeReg && slices.Contains([]string{"usr/local/bin", "opt/cni/bin"},
			path.Dir(h.Name)) {
			text, err := io.ReadAll(r)
			errtest.Must(t, err)
			filetest.Write(t, filepath.Join(dir, path.Base(h.Name)), text, 0o755)
		}
	}
}

// imageForArm64 returns the image for arm64 in an index or in the indices in it, or nil.
func imageForArm64(t *testing.T, index v1.ImageIndex) v1.Image {
	t.Helper()
	m, err := index.IndexManifest()
	errtest.Must(t, err)
	for _, d := range m.Manifests {
		if d.MediaType.IsIndex() {
			inner, err := index.ImageIndex(d.Digest)
			errtest.Must(t, err)
			if image := imageForArm64(t, inner); image != nil {
				return image
			}
			continue
		}
		image, err := index.Image(d.Digest)
		errtest.Must(t, err)
		config, err := image.ConfigFile()
		errtest.Must(t, err)
		if config.Architecture == "arm64" {
			return image
		}
	}
	return nil
}

// runArm64 boots the machine of hack/vm/arm64.sh with the files in the folder files beside its own,
// and returns what it printed until it turned itself off.
func runArm64(ctx context.Context, t *testing.T, files string) string {
	t.Helper()
	nettest.NeedProgram(t, "qemu-system-aarch64")
	const machine = "../../out/vm/arm64/"
	if _, err := os.Stat(machine + "root.cpio"); err != nil {
		t.Fatalf("%v: run hack/vm/arm64.sh first", err)
	}

	// The kernel unpacks archives that follow each other.
	initrd := filepath.Join(t.TempDir(), "initrd")
	command(ctx, t, files, "bash", "-euo", "pipefail", "-c", `
		cp "$1" "$2"
		find work | cpio --create --format=newc --owner=0:0 --quiet >>"$2"`,
		"-", absolute(t, machine+"root.cpio"), initrd)

	start := time.Now()
	var out bytes.Buffer
	c := exec.CommandContext(ctx, "qemu-system-aarch64", "-machine", "virt,gic-version=3",
		"-accel", "tcg,thread=multi", "-cpu", "cortex-a72", "-smp", "1", "-m", "3072",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", machine+"vmlinuz", "-initrd", initrd, "-append",
		"console=ttyAMA0 quiet panic=-1 mitigations=off nowatchdog")
	c.Stdout = io.MultiWriter(&out, t.Output())
	c.Stderr = c.Stdout
	err := c.Run()
	t.Logf("the machine ran for %v: %v", time.Since(start).Round(time.Second), err)
	errtest.Check(t, err)
	return strings.ReplaceAll(out.String(), "\r\n", "\n")
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	errtest.Must(t, err)
	return abs
}
