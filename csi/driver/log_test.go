package driver

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestNoSecretIsLogged(t *testing.T) {
	var log bytes.Buffer
	m := newMachine(t)
	m.log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	d := m.process(0)
	v := m.made(d, mounted(""), map[string]string{"keys": "secret"})
	node := csi.NewNodeClient(m.client(d))
	stage := func(secrets map[string]string) error {
		_, err := node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: pvc, StagingTargetPath: m.folder(staging), VolumeCapability: mounted(""),
			VolumeContext: v.VolumeContext, Secrets: secrets,
		})
		return err
	}

	// The keys are a valid key, the key of another volume, and a key that is too short. Logs must
	// not contain any of them.
	short := map[string]string{keyring.SecretKey: secret(7)[keyring.SecretKey][1:]}
	var errs []string
	for _, s := range []map[string]string{secret(7), secret(8), short} {
		errs = append(errs, fmt.Sprint(stage(s)))
	}

	if _, err := node.NodeUnstageVolume(t.Context(),
		&csi.NodeUnstageVolumeRequest{VolumeId: pvc, StagingTargetPath: m.path(staging)}); err !=
		nil {
		t.Fatal(err)
	}

	errs = append(errs, fmt.Sprint(stage(secret(8))))
	said := log.String() + strings.Join(errs, "\n")
	if !strings.Contains(said, "NodeStageVolume") || !strings.Contains(said, pvc) ||
		!strings.Contains(said, "sha256:") {
		t.Errorf("the log and the errors lack the expected texts: %s", said)
	}

	for _, c := range []byte{7, 8} {
		raw, err := base64.StdEncoding.DecodeString(secret(c)[keyring.SecretKey])
		errtest.Must(t, err)
		for _, form := range []string{secret(c)[keyring.SecretKey][1:20],
			hex.EncodeToString(raw)[:32], fmt.Sprint(raw), string(raw)} {
			if strings.Contains(said, form) {
				t.Errorf("the key is in the log or in an error: %s", said)
			}
		}
	}
}
