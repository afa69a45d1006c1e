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

	"github.com/kubeveil/kubeveil/e2e/cluster/storage/claims"
)

// document is the page of the documentation for lost nodes. Its commands move a volume to another
// node.
const document = "how-to/a-node-that-is-gone.md"

// takeOver moves a volume from the first node to a second machine, by the commands of the document.
// The first node is not really off: only its kubelet is stopped, and its pods still run. Once the
// kubelet is back, that node must close the volume and must not destroy its file.
func (s *Session) takeOver(ctx context.Context) error {
	first := s.Cluster.Machines[0].Name
	if err := s.WriteCanary(ctx, data); err != nil {
		return err
	}
	volume, err := s.Volume(ctx, data)
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

// takeTo moves the volume from the first node to the second, starts the first node's kubelet again,
// and checks both nodes.
func (s *Session) takeTo(ctx context.Context, volume, first, second string) error {
	if err := s.DriverReady(ctx, second); err != nil {
		return err
	}
	file := images + "/" + volume + ".img"
	if err := s.bring(ctx, file, second); err != nil {
		return fmt.Errorf("bring the volume's file to %s: %w", second, err)
	}
	if _, err := s.Node(ctx, "systemctl stop kubelet"); err != nil {
		return err
	}
	err := s.taken(ctx, volume, first, second)
	if err == nil {
		err = s.StillOpen(ctx, first, file)
	}
	if _, start := s.Node(ctx, "systemctl start kubelet"); err != nil || start != nil {
		return errors.Join(err, start)
	}
	if err := s.LetGo(ctx, first, file); err != nil {
		return err
	}
	if err := s.CheckFile(ctx, data, "second"); err != nil {
		return err
	}
	return s.deletedThere(ctx, volume, second, file)
}

// bring copies the volume's file to the machine that joined last, while the volume's file system is
// frozen.
func (s *Session) bring(ctx context.Context, file, to string) error {
	path, err := s.Path(ctx, data)
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

// taken runs the commands of the document. After the move it checks that the pod is on the second
// node and has the data of the first node, and it writes a second file.
func (s *Session) taken(ctx context.Context, volume, first, second string) error {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(s.Manifests), "docs", document))
	if err != nil {
		return err
	}
	move, done, err := takeOverSteps(string(text), volume, first, second)
	if err != nil {
		return err
	}
	if _, err := s.Shell(ctx, move); err != nil {
		return err
	}
	if err := s.CheckFile(ctx, data, "first"); err != nil {
		return err
	}

	node, err := s.Kubectl(ctx, "get", "pod", data.Name, "-o", "jsonpath={.spec.nodeName}")
	if err == nil && node != second {
		err = fmt.Errorf("the pod is on %s, want %s", node, second)
	}
	if err != nil {
		return err
	}
	path, err := s.Path(ctx, data)
	if err != nil {
		return err
	}
	if _, err := s.On(ctx, second, fmt.Sprintf("echo %s >%s/second && sync -f %[2]s", s.Canary,
		path)); err != nil {
		return err
	}

	_, err = s.Shell(ctx, done)
	return err
}

// takeOverSteps returns the commands in text, the document, for a volume and two nodes. move has
// the commands until a pod can use the volume, done the commands that follow.
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

// deletedThere deletes the claim, and waits until the VeilVolume and its file on the second node
// are gone. The file on the first node must still exist. deletedThere removes it.
func (s *Session) deletedThere(ctx context.Context, volume, second, file string) error {
	if _, err := s.Kubectl(ctx, "delete", "pod/"+data.Name, "pvc/"+data.Name); err != nil {
		return err
	}
	err := claims.Until(ctx, "the volume is deleted on "+second, func() error {
		state, err := s.Kubectl(ctx, "get", "veilvolumes", volume, "--ignore-not-found", "-o",
			"name")
		if err != nil {
			return err
		}
		left, err := s.On(ctx, second, "ls "+images)
		if err == nil && state+left != "" {
			err = fmt.Errorf("the VeilVolume %q and the files %q are left", state, left)
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.Node(ctx, "test -f "+file+" && rm "+file)
	return err
}
