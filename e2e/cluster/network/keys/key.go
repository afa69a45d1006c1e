package keys

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Of returns the newest public key that a node has published.
func Of(ctx context.Context, s *session.Session, node string) (string, error) {
	claims, err := s.Claims("")
	if err != nil {
		return "", err
	}
	o, err := claims.Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("VeilNode %s: %w", node, err)
	}
	return publishedKey(o.Object)
}

// publishedKey returns the last key of spec.keys in a VeilNode.
func publishedKey(object map[string]any) (string, error) {
	spec, _ := object["spec"].(map[string]any)
	keys, _ := spec["keys"].([]any)
	if len(keys) == 0 {
		return "", errors.New("the VeilNode has no key")
	}
	last, _ := keys[len(keys)-1].(map[string]any)
	key, _ := last["publicKey"].(string)
	if key == "" {
		return "", errors.New("the VeilNode has an empty key")
	}
	return key, nil
}

// Another waits until a node has published another key than old, and returns it.
func Another(ctx context.Context, s *session.Session, node, old string,
	patience time.Duration) (key string, err error) {
	err = remote.Until(ctx, "another key of "+node, patience, func(ctx context.Context) error {
		if key, err = Of(ctx, s, node); err == nil && key == old {
			err = errors.New("it is still the old key")
		}
		return err
	})
	return key, err
}

// gapOfKey is how long flows may be without an answer while a node's key is replaced: its veild
// ends and starts, and the other nodes learn its key.
const gapOfKey = 30 * time.Second

// lossOfKey is how long UDP records may be lost on usual machines while a node's key is replaced.
// Records are lost after the node uses its new key and before its peer knows it, but not while
// veild restarts.
const lossOfKey = 10 * time.Second

// Replaced replaces a node's key as in docs/operations.md: it removes the key file and restarts
// veild. Peers must use the new key, and connections must survive.
func Replaced(ctx context.Context, s *session.Session) error {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	all, err := s.Load(ctx)
	if err != nil {
		return err
	}
	old, err := Of(ctx, s, b.Node)
	if err != nil {
		return err
	}

	if _, err := s.Lab.Exec(ctx, b.Node, "rm /run/kubeveil/key"); err != nil {
		return err
	}
	pod, err := s.Daemon(ctx, session.VeildSet, b.Node)
	if err != nil {
		return err
	}
	if err := s.Client.CoreV1().Pods(metav1.NamespaceSystem).Delete(ctx, pod.Name,
		metav1.DeleteOptions{}); err != nil {
		return err
	}
	key, err := Another(ctx, s, b.Node, old, session.Rolling)
	if err != nil {
		return err
	}

	err = remote.Until(ctx, "the new key at "+a.Node, session.Meeting,
		func(ctx context.Context) error {
			out, err := s.Lab.Exec(ctx, a.Node, "wg show veil0 peers")
			if err != nil {
				return err
			}
			if peers := strings.Fields(string(out)); !slices.Contains(peers, key) ||
				slices.Contains(peers, old) {
				return fmt.Errorf("its peers are %v, want %s and not %s", peers, key, old)
			}
			return nil
		})
	if err != nil {
		return err
	}

	errs := []error{s.Held(ctx, all, gapOfKey)}
	for _, f := range all {
		for _, flow := range f.Last() {
			errs = append(errs, flow.LostAtMost(remote.Patience(ctx, lossOfKey)))
		}
	}
	return errors.Join(errs...)
}
