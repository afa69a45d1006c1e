// The definitions of the Prometheus operator, for the test of manifests/components/servicemonitor. Nothing of it is built.
module github.com/kubeveil/kubeveil/hack/tools/prometheus

go 1.26.6

require github.com/prometheus-operator/prometheus-operator v0.94.1
