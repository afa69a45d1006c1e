package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/cluster/storage/claims"
)

// recover reads a volume without Kubeveil, with the commands of `veilctl volume recover` for a lost
// cluster. It uses the saved state and key, and stock cryptsetup on the node. Then the pod must get
// the volume again.
func (s *Session) recover(ctx context.Context) error {
	volume, err := s.Volume(ctx, files)
	if err != nil {
		return err
	}
	if err := s.Stop(ctx, files.Name); err != nil {
		return err
	}

	err = claims.Until(ctx, "the volume is not open", func() error {
		out, err := s.Kubectl(ctx, "get", "veilvolume", volume, "-o", "jsonpath={.status.writer}")
		if err == nil && out != "" {
			err = fmt.Errorf("it is open on %s", out)
		}
		return err
	})
	if err != nil {
		return err
	}

	out, err := s.Shell(ctx, "umask 077; kubectl get veilvolume "+volume+
		" -o json >saved.json; kubectl -n kube-system get secret e2e-kek -o jsonpath={.data.key} "+
		"| base64 -d >kek; "+
		"unset KUBECONFIG; veilctl volume recover --state saved.json --key-file kek "+
		"--show-key -o json")
	if err != nil {
		return err
	}

	script, err := recoverySteps([]byte(out), "grep -c "+s.Canary+" /mnt/first")
	if err != nil {
		return err
	}
	found, err := s.Node(ctx, script)
	if err == nil && (found == "" || found == "0") {
		err = errors.New("the recovered file has no canary")
	}

	return errors.Join(err, s.checkExpanded(ctx, files, "third"))
}

// recoverySteps returns a script with the commands that veilctl printed. It passes the recovery key
// to cryptsetup, and runs look after the mount.
func recoverySteps(said []byte, look string) (string, error) {
	var r struct {
		Steps       []string
		RecoveryKey string
	}
	if err := json.Unmarshal(said, &r); err != nil {
		return "", fmt.Errorf("output of veilctl: %w", err)
	}

	lines := []string{"set -e"}
	for _, step := range r.Steps {
		for line := range strings.Lines(step) {
			command, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "  ")
			if !ok {
				continue
			}
			// The rest of the line is an explanation.
			command, _, _ = strings.Cut(command, "      (")
			if strings.HasPrefix(command, "cryptsetup open") {
				command = "echo " + r.RecoveryKey + " | " + command
			}
			lines = append(lines, command)
			if strings.HasPrefix(command, "mount ") {
				lines = append(lines, look)
			}
		}
	}

	if r.RecoveryKey == "" || len(lines) < 5 {
		return "", fmt.Errorf("veilctl prints no commands, or no key: %d steps", len(r.Steps))
	}
	return strings.Join(lines, "\n"), nil
}
