// Kmsplugin is a KMS v2 plugin for test machines. It uses the server that Kubernetes offers to
// authors of plugins (k8s.io/kms/pkg/service). Its key-encryption keys are the lines of a file,
// each base64 of 32 bytes. The last key wraps.
//
//	kmsplugin SOCKET FILE
package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/kms/pkg/service"
)

// connectPatience is the time limit for a client to connect.
const connectPatience = 5 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kmsplugin:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: kmsplugin SOCKET FILE")
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	keys, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	// Remove the socket of a plugin that was killed.
	if err := os.Remove(args[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(args[0]), 0o700); err != nil {
		return err
	}
	return service.NewGRPCService(args[0], connectPatience, keys).ListenAndServe()
}

// keys are the key-encryption keys. The last key wraps.
type keys []kek

type kek struct {
	id   string
	aead cipher.AEAD
}

func parse(text string) (keys, error) {
	var out keys
	for i, line := range strings.Fields(text) {
		raw, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(raw) != 32 {
			return nil, fmt.Errorf("line %d is not base64 of 32 bytes", i+1)
		}
		block, err := aes.NewCipher(raw)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(raw)
		out = append(out, kek{hex.EncodeToString(sum[:8]), aead})
	}
	if len(out) == 0 {
		return nil, errors.New("no keys")
	}
	return out, nil
}

func (k keys) wraps() kek { return k[len(k)-1] }

// Status implements service.Service.
func (k keys) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: k.wraps().id}, nil
}

// Encrypt implements service.Service.
func (k keys) Encrypt(_ context.Context, _ string, plain []byte) (*service.EncryptResponse, error) {
	w := k.wraps()
	return &service.EncryptResponse{Ciphertext: w.aead.Seal(nil, nil, plain, nil), KeyID: w.id}, nil
}

// Decrypt implements service.Service.
func (k keys) Decrypt(_ context.Context, _ string, r *service.DecryptRequest) ([]byte, error) {
	for _, one := range k {
		if one.id == r.KeyID {
			return one.aead.Open(nil, nil, r.Ciphertext, nil)
		}
	}
	return nil, fmt.Errorf("no key %q", r.KeyID)
}
