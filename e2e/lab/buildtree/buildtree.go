package buildtree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Root returns the root of the repository, the nearest folder with a go.mod at or above the working
// directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("find the repository: no go.mod at or above the working " +
				"directory")
		}
		dir = filepath.Dir(dir)
	}
}

// noBuildEnv names the environment variable that makes Build do nothing if it is set.
const noBuildEnv = "KUBEVEIL_LAB_NO_BUILD"

// Build builds the programs in out/bin that are out of date. It does so once per process, and in
// one process at a time. So a second process finds them up to date, and does not replace a program
// that runs.
var Build = sync.OnceValue(func() error {
	root, err := Root()
	if err != nil {
		return err
	}
	if os.Getenv(noBuildEnv) != "" {
		return nil
	}

	if err := os.MkdirAll(filepath.Join(root, "out"), 0o755); err != nil {
		return fmt.Errorf("build the programs: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(root, "out/build.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("build the programs: %w", err)
	}
	defer lock.Close() // unlocks
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}

	out, err := exec.Command(filepath.Join(root, "hack/build.sh")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the programs: %w: %s", err, out)
	}
	return nil
})

// StreamingEtcd is the path of the etcd for streaming lists below the root.
const StreamingEtcd = "out/tools/etcd-streams"

// NeedKubernetes returns an error if programs of the control plane are missing below root.
func NeedKubernetes(root string) error {
	for _, need := range []string{"out/bin/kube-apiserver", "out/tools/etcd"} {
		if _, err := os.Stat(filepath.Join(root, need)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is missing: run `make kubernetes` first", need)
		}
	}
	return nil
}

// OperatorDefinition returns the file with the Prometheus operator's own definition of a resource,
// such as servicemonitors. The file is in the operator's Go module.
func OperatorDefinition(ctx context.Context, root, resource string) (string, error) {
	const module = "github.com/prometheus-operator/prometheus-operator"
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = filepath.Join(root, "hack/tools/prometheus")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w: %s", module, err, out)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(out, &found); err != nil {
		return "", fmt.Errorf("download %s: %w", module, err)
	}
	return filepath.Join(found.Dir,
		"example/prometheus-operator-crd/monitoring.coreos.com_"+resource+".yaml"), nil
}
