// Package kubetest helps the tests of package kube and of the packages below it: it makes objects
// of the largest size, and measures what reading them costs. Only tests import it.
package kubetest
