package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SuiteLabel is the label of every object that suites create. Its value is the prefix of the name
// of the namespace.
const SuiteLabel = "kubeveil.io/suite"

// Time limits of namespaces.
const (
	// After an outage of the API server, controllers may need up to a minute to reconnect, because
	// their retries back off.
	namespacePatience = 2 * time.Minute
	deletePatience    = 5 * time.Minute
)

// Level is the level of Pod Security Admission of a namespace.
type Level string

// Levels. Host ports, the host's network and capabilities need Privileged.
const (
	Baseline   Level = "baseline"
	Privileged Level = "privileged"
)

// Namespace is a namespace that a suite created and must close.
type Namespace struct {
	Name    string
	Cluster *Cluster
	suite   string
}

// Namespace creates a namespace whose name begins with prefix and returns when pods can be created
// in it. The caller must close the namespace, also after errors.
func (c *Cluster) Namespace(ctx context.Context, prefix string, level Level) (*Namespace, error) {
	object, err := c.Client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			GenerateName: prefix + "-",
			Labels: map[string]string{SuiteLabel: prefix,
				"pod-security.kubernetes.io/enforce": string(level)},
		}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create namespace %s-…: %w", prefix, err)
	}
	n := &Namespace{Name: object.Name, Cluster: c, suite: prefix}
	err = Until(ctx, "account of namespace "+n.Name, namespacePatience,
		func(ctx context.Context) error {
			_, err := c.Client.CoreV1().ServiceAccounts(n.Name).Get(ctx, "default",
				metav1.GetOptions{})
			return err
		})
	if err != nil {
		return nil, errors.Join(err, n.Close(context.WithoutCancel(ctx)))
	}
	return n, nil
}

// Close deletes the namespace and waits until it is gone, for at most five minutes. It may be
// called again.
func (n *Namespace) Close(ctx context.Context) error {
	namespaces := n.Cluster.Client.CoreV1().Namespaces()
	return Until(ctx, "delete namespace "+n.Name, deletePatience, func(ctx context.Context) error {
		err := goneAfter(namespaces.Delete(ctx, n.Name, metav1.DeleteOptions{}))
		if !errors.Is(err, errStillThere) {
			return err
		}
		if got, e := namespaces.Get(ctx, n.Name, metav1.GetOptions{}); e == nil {
			err = remaining(got)
		}
		return err
	})
}

// remaining returns errStillThere with the messages of the conditions that delay the deletion.
func remaining(n *corev1.Namespace) error {
	err := errStillThere
	for _, c := range n.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			err = fmt.Errorf("%w: %s", err, c.Message)
		}
	}
	return err
}

var errStillThere = errors.New("still there")

// goneAfter converts the error of a request for an object that is being deleted. It returns nil if
// the object is not found, and errStillThere if the request succeeded.
func goneAfter(err error) error {
	switch {
	case err == nil, apierrors.IsConflict(err):
		return errStillThere
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err):
		return Stop(err)
	}
	return err
}
