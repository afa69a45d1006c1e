package keyring

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	kms "k8s.io/kms/apis/v2"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// plugin is a KMS v2 plugin that keeps its key in memory.
type plugin struct {
	kms.UnimplementedKeyManagementServiceServer
	mu     sync.Mutex
	aead   cipher.AEAD
	status *kms.StatusResponse
	// answer is the response of Encrypt if it is set.
	answer *kms.EncryptResponse
	server *grpc.Server
}

const annotation = "lab.kubeveil.test"

func (p *plugin) Status(context.Context, *kms.StatusRequest) (*kms.StatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status, nil
}

func (p *plugin) Encrypt(_ context.Context, r *kms.EncryptRequest) (*kms.EncryptResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answer != nil {
		return p.answer, nil
	}
	nonce := make([]byte, p.aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return &kms.EncryptResponse{KeyId: p.status.KeyId,
		Ciphertext:  p.aead.Seal(nil, nonce, r.Plaintext, nil),
		Annotations: map[string][]byte{annotation: nonce}}, nil
}

func (p *plugin) Decrypt(_ context.Context, r *kms.DecryptRequest) (*kms.DecryptResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(r.Annotations[annotation]) != p.aead.NonceSize() || r.Uid == "" {
		return nil, errors.New("annotation or uid is missing")
	}
	plain, err := p.aead.Open(nil, r.Annotations[annotation], r.Ciphertext, nil)
	return &kms.DecryptResponse{Plaintext: plain}, err
}

// newPlugin serves a plugin with a random key until the test ends.
func newPlugin(t *testing.T) (*KMS, *plugin) {
	t.Helper()
	key := make([]byte, 32)
	errtest.Must(t, errtest.Of(rand.Read(key)))
	block, err := aes.NewCipher(key)
	errtest.Must(t, err)
	p := &plugin{status: &kms.StatusResponse{Version: "v2", Healthz: "ok", KeyId: rand.Text()},
		server: grpc.NewServer()}
	if p.aead, err = cipher.NewGCM(block); err != nil {
		t.Fatal(err)
	}

	socket := filepath.Join(t.TempDir(), "kms.sock")
	l, err := net.Listen("unix", socket)
	errtest.Must(t, err)

	kms.RegisterKeyManagementServiceServer(p.server, p)
	var served sync.WaitGroup
	served.Go(func() { _ = p.server.Serve(l) })
	client, err := NewKMS(socket)
	errtest.Must(t, err)

	t.Cleanup(func() {
		client.Close()
		p.server.Stop()
		served.Wait()
	})
	return client, p
}

func TestKMSRefusesBadPlugins(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(p *plugin)
		want  string
	}{
		"another version": {func(p *plugin) { p.status.Version = "v1" }, `version "v1"`},
		"not healthy":     {func(p *plugin) { p.status.Healthz = "sealed" }, `"sealed"`},
		"no key id":       {func(p *plugin) { p.status.KeyId = "" }, "0 bytes"},
		"nothing encrypted": {func(p *plugin) {
			p.answer = &kms.EncryptResponse{KeyId: "k"}
		}, "0 bytes"},
		"too long": {func(p *plugin) {
			p.answer = &kms.EncryptResponse{KeyId: "k", Ciphertext: make([]byte, 1025)}
		}, "1025 bytes"},
		"stopped": {func(p *plugin) { p.server.Stop() }, "kms.sock"},
		"annotations of no end": {func(p *plugin) {
			p.answer = &kms.EncryptResponse{KeyId: "k", Ciphertext: []byte("c"),
				Annotations: map[string][]byte{"a": make([]byte, 33<<10)}}
		}, "annotations"},
	} {
		t.Run(name, func(t *testing.T) {
			client, p := newPlugin(t)
			c.spoil(p)
			_, err := client.KeyID(t.Context())
			if err == nil {
				_, err = client.Wrap(t.Context(), here, secretOf(t, make([]byte, 64)))
			}
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}

// While a plugin is away for long, though volumes need keys all the time, KMS tries to connect every
// two seconds. By default gRPC waits for up to two minutes after the plugin is back.
func TestKMSTriesAgainSoonAfterALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last time.Time
		var longest time.Duration
		errAway := errors.New("no plugin listens")
		away := func(context.Context, string) (net.Conn, error) {
			if !last.IsZero() {
				longest = max(longest, time.Since(last))
			}
			last = time.Now()
			return nil, errAway
		}
		client, err := NewKMS("/away.sock", grpc.WithContextDialer(away))
		errtest.Must(t, err)
		defer client.Close()

		for from := time.Now(); time.Since(from) < 10*time.Minute; time.Sleep(time.Second) {
			if _, err := client.KeyID(t.Context()); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("%v, want %v", err, ErrUnavailable)
			}
		}
		synctest.Wait()
		longest = max(longest, time.Since(last))
		// gRPC adds up to a fifth to a pause.
		if longest == 0 || longest > kmsAgain+kmsAgain/5 {
			t.Errorf("the longest pause between two attempts is %s, want %s at most", longest,
				kmsAgain+kmsAgain/5)
		}
	})
}

func TestKMSThatGivesThePlainTextBack(t *testing.T) {
	client, p := newPlugin(t)
	key := secretOf(t, make([]byte, 64))
	plain, err := seal(here, key)
	errtest.Must(t, err)
	p.answer = &kms.EncryptResponse{KeyId: "k", Ciphertext: append([]byte("x"), plain.Bytes()...)}
	if _, err := client.Wrap(t.Context(), here, key); !errors.Is(err, ErrUnavailable) {
		t.Errorf("kept the plain key: %v", err)
	}
}
