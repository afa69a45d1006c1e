package keyring

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	kms "k8s.io/kms/apis/v2"
)

// Limits of the KMS v2 API (k8s.io/kms/apis/v2/api.proto), in bytes.
const (
	maxKeyID       = 1024
	maxCiphertext  = 1024
	maxAnnotations = 32 << 10
)

// KMSSocket is the path of the plugin's socket on nodes in the manifests.
const KMSSocket = "/run/kubeveil/kms/kms.sock"

// kmsPatience limits how long one call of the plugin may take.
const kmsPatience = 5 * time.Second

// kmsAgain is the longest pause before KMS tries to connect to the plugin again. By default gRPC
// waits for up to two minutes after a plugin was away.
const kmsAgain = 2 * time.Second

// KMS is a Provider that uses a Kubernetes KMS v2 plugin on a unix socket, like the API server. It
// connects on first use, and connects again after the plugin was away.
type KMS struct {
	conn    *grpc.ClientConn
	service kms.KeyManagementServiceClient
	socket  string
}

// NewKMS returns a KMS for the plugin that listens on the path socket. It does not connect. The
// caller calls Close. Only tests have more options.
func NewKMS(socket string, more ...grpc.DialOption) (*KMS, error) {
	pauses := backoff.DefaultConfig
	pauses.MaxDelay = kmsAgain
	conn, err := grpc.NewClient("unix:"+socket, append(more,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses,
			MinConnectTimeout: kmsPatience}))...)
	if err != nil {
		return nil, fmt.Errorf("kms plugin %s: %w", socket, err)
	}
	return &KMS{conn, kms.NewKeyManagementServiceClient(conn), socket}, nil
}

// Close ends the connection.
func (p *KMS) Close() error { return p.conn.Close() }

// Name returns NameKMS.
func (p *KMS) Name() string { return NameKMS }

// KeyID returns the current key id from the plugin's status. It returns ErrUnavailable if the
// plugin is not healthy.
func (p *KMS) KeyID(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, kmsPatience)
	defer cancel()
	s, err := p.service.Status(ctx, &kms.StatusRequest{})
	if err != nil {
		return "", p.unavailable("status", err)
	}
	if s.Version != "v2" && s.Version != "v2beta1" {
		return "", fmt.Errorf("%w: kms plugin %s speaks version %q, want v2", ErrUnavailable,
			p.socket, s.Version)
	}
	if s.Healthz != "ok" {
		return "", fmt.Errorf("%w: kms plugin %s returns %q, want \"ok\"", ErrUnavailable, p.socket,
			s.Healthz)
	}
	if err := p.checkKeyID(s.KeyId); err != nil {
		return "", err
	}
	return s.KeyId, nil
}

// Wrap encrypts with the plugin.
func (p *KMS) Wrap(ctx context.Context, b Binding, key *Secret) (Wrapped, error) {
	plain, err := seal(b, key)
	if err != nil {
		return Wrapped{}, err
	}
	defer plain.Wipe()
	ctx, cancel := context.WithTimeout(ctx, kmsPatience)
	defer cancel()
	r, err := p.service.Encrypt(ctx, &kms.EncryptRequest{Plaintext: plain.Bytes(),
		Uid: rand.Text()})
	if err != nil {
		return Wrapped{}, p.unavailable("encrypt", err)
	}

	if err := p.checkKeyID(r.KeyId); err != nil {
		return Wrapped{}, err
	}

	if n := len(r.Ciphertext); n == 0 || n > maxCiphertext ||
		bytes.Contains(r.Ciphertext, plain.Bytes()) {
		return Wrapped{}, fmt.Errorf("%w: kms plugin %s answered with %d bytes: want 1 to %d, not "+
			"the plain text", ErrUnavailable, p.socket, n, maxCiphertext)
	}

	size := 0
	for k, v := range r.Annotations {
		size += len(k) + len(v)
	}

	if size > maxAnnotations {
		return Wrapped{}, fmt.Errorf("%w: kms plugin %s returned %d bytes of annotations: want "+
			"at most %d", ErrUnavailable, p.socket, size, maxAnnotations)
	}

	return Wrapped{NameKMS, r.KeyId, r.Ciphertext, maps.Clone(r.Annotations)}, nil
}

// Unwrap decrypts with the plugin and checks the binding.
func (p *KMS) Unwrap(ctx context.Context, b Binding, w Wrapped) (*Secret, error) {
	if w.Provider != NameKMS {
		return nil, fmt.Errorf("%s: %w: expected provider %s, found %s", b, ErrWrongKey, NameKMS,
			w.Provider)
	}
	ctx, cancel := context.WithTimeout(ctx, kmsPatience)
	defer cancel()
	r, err := p.service.Decrypt(ctx, &kms.DecryptRequest{Ciphertext: w.Blob, Uid: rand.Text(),
		KeyId: w.KeyID, Annotations: w.Annotations})
	if err != nil {
		return nil, p.unavailable("decrypt", err)
	}
	return open(b, r.Plaintext)
}

func (p *KMS) checkKeyID(id string) error {
	if id == "" || len(id) > maxKeyID {
		return fmt.Errorf("%w: kms plugin %s returned a key id of %d bytes: want 1 to %d",
			ErrUnavailable, p.socket, len(id), maxKeyID)
	}
	return nil
}

// unavailable returns ErrUnavailable for any error of a call, because the API has no codes that
// distinguish a refusal from a failure.
func (p *KMS) unavailable(call string, err error) error {
	return fmt.Errorf("%w: kms plugin %s: %s: %w", ErrUnavailable, p.socket, call, err)
}
