"""The plugin: this folder becomes ``usr/plugins/onward`` of Agent Zero."""
