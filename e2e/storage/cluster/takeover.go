package cluster

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

// document says what a person does to have a volume on another node.
const document = "storage.md"

// takeOver has a volume taken over by a second machine, to which its file is brought, by the commands of the documentation. Its first node only looks as if it were
// off: its kubelet stands still while its pods and their mounts go on. When the kubelet is back, that node lets the volume go and destroys nothing.
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
	err = s.taken(ctx, volume, first, second)
	// Without it no later case has a node.
	if _, start := s.node(ctx, "systemctl start kubelet"); start != nil {
		return errors.Join(err, start)
	}
	if err == nil {
		err = s.letGo(ctx, first, file)
	}
	if err == nil {
		err = s.has(ctx, data, "second")
	}
	if err == nil {
		err = s.deletedThere(ctx, volume, second, file)
	}
	return errors.Join(err, s.Cluster.Leave(ctx, second))
}

// bring copies the file to a machine while nobody can write to the volume.
func (s *Session) bring(ctx context.Context, file, to string) error {
	path, err := s.path(ctx, data)
	if err != nil {
		return err
	}
	m := s.Cluster.Machines
	content, err := m[0].Exec(ctx, fmt.Sprintf("fsfreeze -f %[1]s && cat %[2]s; fsfreeze -u %[1]s", path, file))
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

// taken does what the documentation says, and wants what was written on the first node on the second one.
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
	if _, err := s.on(ctx, second, fmt.Sprintf("echo %s >%s/second && sync -f %[2]s", s.canary, path)); err != nil {
		return err
	}
	_, err = s.shell(ctx, done)
	return err
}

// takeOverSteps are the commands of the documentation for a volume and two nodes: those until a pod may have it, and those after.
func takeOverSteps(text, volume, first, second string) (move, done string, err error) {
	_, text, _ = strings.Cut(text, "\n### A node that is gone\n")
	_, text, _ = strings.Cut(text, "\n```sh\n")
	text, _, found := strings.Cut(text, "\n```\n")
	move, done, both := strings.Cut(text, "\n# 5. ")
	if !found || !both {
		return "", "", fmt.Errorf("%s has no block of five steps below \"A node that is gone\"", document)
	}
	names := func(text string) string {
		text = strings.NewReplacer("node-1", first, "node-2", second).Replace(text)
		return regexp.MustCompile(`\bV\b`).ReplaceAllString(text, volume)
	}
	return names(move), names("# " + done), nil
}

// letGo waits until the first node, which has heard of it, has nothing open of the file any more. The file is there as it was.
func (s *Session) letGo(ctx context.Context, first, file string) error {
	// By its name: the kernel may say its path as the driver's container has it.
	open := "losetup -nO BACK-FILE | grep -c /" + filepath.Base(file) + "; true"
	if out, err := s.node(ctx, open); err != nil || out != "1" {
		return fmt.Errorf("before it heard of it %s should have %s open once: %q, %w", first, file, out, err)
	}
	if err := s.driverReady(ctx, first); err != nil {
		return err
	}
	err := until(ctx, first+" lets the volume go", func() error {
		out, err := s.node(ctx, open)
		if err == nil && out != "0" {
			err = fmt.Errorf("%s is open %s times", file, out)
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.node(ctx, "test -f "+file)
	return err
}

// deletedThere deletes the claim: the volume is gone with its file on the second node, and that of the first one is nobody's.
func (s *Session) deletedThere(ctx context.Context, volume, second, file string) error {
	if _, err := s.kubectl(ctx, "delete", "pod/"+data.Name, "pvc/"+data.Name); err != nil {
		return err
	}
	err := until(ctx, "the volume is deleted where it is", func() error {
		state, err := s.kubectl(ctx, "get", "veilvolumes", volume, "--ignore-not-found", "-o", "name")
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
