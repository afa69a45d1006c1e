package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// document describes what a person does to have a volume on another node.
const document = "how-to/a-node-that-is-gone.md"

// takeOver has a volume taken over by a second machine, to which its file is brought, by the
// commands of the documentation. Its first node only looks as if it were off: its kubelet stands
// still while its pods and their mounts go on. When the kubelet is back, that node lets the volume
// go and destroys nothing.
func (s *Session) takeOver(ctx context.Context) error {
	first := s.Cluster.Machines[0].Name
	if err := s.use(ctx, data); err != nil {
		return err
	}
	volume, err := s.volume(ctx, data)
	if err != nil {
		return err
	}
	second, err := s.Cluster.Join(ctx)
	if err != nil {
		return err
	}
	// Later cases need one node.
	return errors.Join(s.takeTo(ctx, volume, first, second), s.Cluster.Leave(ctx, second))
}

func (s *Session) takeTo(ctx context.Context, volume, first, second string) error {
	if err := s.driverReady(ctx, second); err != nil {
		return err
	}
	file := images + "/" + volume + ".img"
	if err := s.bring(ctx, file, second); err != nil {
		return fmt.Errorf("bring the volume's file to %s: %w", second, err)
	}
	if _, err := s.node(ctx, "systemctl stop kubelet"); err != nil {
		return err
	}
	err := s.taken(ctx, volume, first, second)
	if err == nil {
		err = s.stillOpen(ctx, first, file)
	}
	if _, start := s.node(ctx, "systemctl start kubelet"); err != nil || start != nil {
		return errors.Join(err, start)
	}
	if err := s.letGo(ctx, first, file); err != nil {
		return err
	}
	if err := s.has(ctx, data, "second"); err != nil {
		return err
	}
	return s.deletedThere(ctx, volume, second, file)
}

// bring copies the file to a machine while no process can write to the volume.
func (s *Session) bring(ctx context.Context, file, to string) error {
	path, err := s.path(ctx, data)
	if err != nil {
		return err
	}
	m := s.Cluster.Machines
	content, err := m[0].Exec(ctx, fmt.Sprintf("fsfreeze -f %[1]s && cat %[2]s; fsfreeze -u %[1]s",
		path, file))
	if err != nil {
		return err
	}
	if len(content) < data.MiB<<20 {
		return fmt.Errorf("%s has %d bytes, want at least %d MiB", file, len(content), data.MiB)
	}
	if last := m[len(m)-1]; last.Name == to {
		return last.Put(ctx, file, 0o600, bytes.NewReader(content))
	}
	return fmt.Errorf("%s is not the machine that joined last", to)
}

// taken follows the documentation, and checks that the data of the first node is on the second one.
func (s *Session) taken(ctx context.Context, volume, first, second string) error {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(s.Manifests), "docs", document))
	if err != nil {
		return err
	}
	move, done, err := takeOverSteps(string(text), volume, first, second)
	if err != nil {
		return err
	}
	if _, err := s.shell(ctx, move); err != nil {
		return err
	}
	if err := s.has(ctx, data, "first"); err != nil {
		return err
	}

	node, err := s.kubectl(ctx, "get", "pod", data.Name, "-o", "jsonpath={.spec.nodeName}")
	if err == nil && node != second {
		err = fmt.Errorf("the pod is on %s, want %s", node, second)
	}
	if err != nil {
		return err
	}
	path, err := s.path(ctx, data)
	if err != nil {
		return err
	}
	if _, err := s.on(ctx, second, fmt.Sprintf("echo %s >%s/second && sync -f %[2]s", s.canary,
		path)); err != nil {
		return err
	}

	_, err = s.shell(ctx, done)
	return err
}

// takeOverSteps are the commands of the documentation for a volume and two nodes: those until a pod
// may have it, and those after.
func takeOverSteps(text, volume, first, second string) (move, done string, err error) {
	_, text, _ = strings.Cut(text, "\n## Take a volume over\n")
	_, text, _ = strings.Cut(text, "\n```sh\n")
	text, _, found := strings.Cut(text, "\n```\n")
	move, done, both := strings.Cut(text, "\n# 5. ")
	if !found || !both {
		return "", "", fmt.Errorf("%s has no block of five steps below \"Take a volume over\"",
			document)
	}
	names := func(text string) string {
		text = strings.NewReplacer("node-1", first, "node-2", second).Replace(text)
		return regexp.MustCompile(`\bV\b`).ReplaceAllString(text, volume)
	}
	return names(move), names("# " + done), nil
}

// users counts the open descriptors of the first node for the file, by its name: the kernel may
// return the path in the driver's container.
func (s *Session) users(ctx context.Context, file string) (string, error) {
	return s.node(ctx, "losetup -nO BACK-FILE | grep -c /"+filepath.Base(file)+"; true")
}

// stillOpen requires that the first node has the volume open: it has not noticed anything, or has
// only fenced it.
func (s *Session) stillOpen(ctx context.Context, first, file string) error {
	n, err := s.users(ctx, file)
	if err == nil && n != "1" {
		err = fmt.Errorf("before its kubelet is back %s has %s open %s times, want once", first,
			file, n)
	}
	return err
}

// letGo waits until the first node, which has heard of it, has nothing open of the file any more.
// The file is there as it was.
func (s *Session) letGo(ctx context.Context, first, file string) error {
	if err := s.driverReady(ctx, first); err != nil {
		return err
	}
	err := until(ctx, first+" lets the volume go", func() error {
		n, err := s.users(ctx, file)
		if err == nil && n != "0" {
			err = fmt.Errorf("%s is open %s times", file, n)
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.node(ctx, "test -f "+file)
	return err
}

// deletedThere deletes the claim. The volume is gone with its file on the second node, and the
// volume of the first node has no owner.
func (s *Session) deletedThere(ctx context.Context, volume, second, file string) error {
	if _, err := s.kubectl(ctx, "delete", "pod/"+data.Name, "pvc/"+data.Name); err != nil {
		return err
	}
	err := until(ctx, "the volume is deleted where it is", func() error {
		state, err := s.kubectl(ctx, "get", "veilvolumes", volume, "--ignore-not-found", "-o",
			"name")
		if err != nil {
			return err
		}
		left, err := s.on(ctx, second, "ls "+images)
		if err == nil && state+left != "" {
			err = fmt.Errorf("there are %q and %q", state, left)
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.node(ctx, "test -f "+file+" && rm "+file)
	return err
}
