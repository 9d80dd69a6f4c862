"""Backends: conversion of chunk bytes to array elements in host or device memory, and back."""
